"""Canaries: token, lease secrets and bodies are planted, all runs at DEBUG, then everything written is searched."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from orbit.protocol.errors import ErrorCode
from orbit.sdk import Delivery, EventConsumer, OrbitClient, OrbitError, Unavailable
from tests.support.consuming import Script, at_once, consuming, counted
from tests.support.fake_orbit import Cut, FakeOrbit, Refuse, Say

BODY = "canary-body-7d21"
WAIT_S = 20.0


class Everything(logging.Handler):
    """Keeps every record of every logger, formatted with its traceback, and its arguments' reprs."""

    def __init__(self) -> None:
        super().__init__(logging.NOTSET)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.name} {self.format(record)} {record.__dict__!r}")


@pytest.fixture
def everything() -> Iterator[Everything]:
    handler = Everything()
    loggers = [logging.getLogger()] + [
        logging.getLogger(name) for name in logging.root.manager.loggerDict if name != "fake-orbit"
    ]
    before = [(logger, logger.level, logger.disabled) for logger in loggers]
    logging.getLogger().addHandler(handler)
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
        logger.disabled = False
    yield handler
    logging.getLogger().removeHandler(handler)
    for logger, level, disabled in before:
        logger.setLevel(level)
        logger.disabled = disabled


def secrets_of(orbit: FakeOrbit) -> set[str]:
    """Everything that must be nowhere: the token and each lease secret the platform has ever given."""
    given = {frame.lease_secret.reveal() for frame in _proofs(orbit)}
    assert given, "no proof was ever used"
    return {orbit.token.reveal(), BODY} | given


def _proofs(orbit: FakeOrbit) -> list[Any]:
    return [proof for ack in orbit.saw("event.ack") for proof in ack.deliveries] + [
        one.proof for release in orbit.saw("event.release") for one in release.deliveries
    ]


async def _everything_that_can_happen(orbit: FakeOrbit, written: list[str]) -> None:
    """One consumer through success, failure, invalid events, refusals, cuts and protocol errors; keep every repr."""

    async def act(delivery: Delivery) -> None:
        written.append(repr(delivery))
        written.append(str(delivery))
        kind = json.loads(delivery.event.text).get("kind")
        if kind == "fail":
            raise ValueError(BODY)
        if kind == "away":
            raise Unavailable(BODY)

    def event(kind: str, **members: Any) -> dict[str, Any]:
        return {**orbit.event(), "kind": kind, "result": {"secret": BODY}, **members}

    script = Script(act)
    orbit.refuse_lookups.append((503, ErrorCode.UNAVAILABLE))
    orbit.refuse_upgrades.append((502, None))
    async with consuming(orbit.client(), orbit.subscription_id, script) as consumer:
        orbit.misbehave("event.ack", Cut())
        orbit.misbehave("event.ack", Refuse(ErrorCode.UNAVAILABLE))
        orbit.emit(event("work"))
        await counted(consumer, lambda counts: counts.acknowledged == 1)
        orbit.emit(event("fail"))
        orbit.emit(event("invalid", result=None, task_id=BODY))
        await counted(consumer, lambda counts: counts.failed == 1 and counts.invalid == 1)
        await orbit.until(lambda: len(orbit.saw("event.release")) >= 1)
        written.extend(repr(one) for one in script.invalid)
        orbit.misbehave("event.ack", Say('{"protocol_version":"1","type":"ack","body":{"canary":"' + BODY + '"}}'))
        orbit.emit(event("work"))
        await counted(consumer, lambda counts: counts.acknowledged == 2)
        orbit.emit(event("away"))
        await counted(consumer, lambda counts: counts.failed == 2)
        book = consumer._book
        held = [*book._held.values(), *book._sent.values(), *book._unsent.values()]
        objects = [consumer, consumer._client, consumer._client.credentials, consumer._client._http, book, *held]
        objects += [frame.body for frame in orbit.seen]
        written.extend(f"{one!r} {one!s} {one}" for one in objects)


async def test_nothing_secret_is_written_anywhere(everything: Everything) -> None:
    loop = asyncio.get_running_loop()
    written: list[str] = []
    async with FakeOrbit() as orbit:
        loop.set_debug(True)
        try:
            await _everything_that_can_happen(orbit, written)
        finally:
            loop.set_debug(False)
    text = "\n".join([*everything.lines, *written])
    assert "the handler raised ValueError" in text
    assert "invalid event: event.result: must not be null" in text
    assert "paused" in text
    assert "httpcore.http11" in text or "httpcore.connection" in text, "the libraries were not at DEBUG"
    assert len(everything.lines) > 50
    found = {secret for secret in secrets_of(orbit) if secret in text}
    assert found == set()


async def test_no_traceback_shows_the_token_not_even_with_locals() -> None:
    errors: list[OrbitError] = []
    async with FakeOrbit() as orbit:
        async with orbit.client() as client:
            orbit.refuse_lookups.append((403, ErrorCode.PERMISSION_DENIED))
            errors.append(await _failure(client, client.get_subscription(orbit.subscription_id)))
            orbit.refuse_upgrades.append((401, ErrorCode.UNAUTHENTICATED))
            errors.append(await _failure(client, client.open_channel("/v1/events", "pulse.events.v1")))
            orbit.subprotocol = None
            errors.append(await _failure(client, client.open_channel("/v1/events", "pulse.events.v1")))
            orbit.refuse_lookups.append((403, ErrorCode.PERMISSION_DENIED))
            consumer = EventConsumer(client, orbit.subscription_id, Script(), timing=at_once())
            errors.append(await _failure(client, consumer.run()))
        token = orbit.token.reveal()
        port = orbit.port
        credentials = orbit.credentials
    async with OrbitClient(f"http://127.0.0.1:{port}", credentials) as client:
        errors.append(await _failure(client, client.get_task("a" * 32)))
        errors.append(await _failure(client, client.open_channel("/v1/events", "pulse.events.v1")))
    assert len(errors) == 6
    for error in errors:
        shown = "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
        assert "client.py" in shown
        assert token not in shown
        assert token not in repr(error)
        assert token not in repr(error.__dict__)


async def test_credentials_cannot_be_pickled() -> None:
    async with FakeOrbit() as orbit:
        with pytest.raises(TypeError):
            pickle.dumps(orbit.credentials)


async def _failure(_: OrbitClient, call: Any) -> OrbitError:
    with pytest.raises(OrbitError) as caught:
        await asyncio.wait_for(call, WAIT_S)
    return caught.value

"""Canaries: token, secrets, payload and result; a worker meets everything at DEBUG, and all text is searched."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import Raw

from orbit.protocol.errors import ErrorCode
from orbit.protocol.limits import Limits
from orbit.sdk import (
    Attempt,
    Finish,
    OrbitClient,
    Outcome,
    WorkerConnection,
    WorkerRegistration,
    new_worker_message_id,
    new_worker_registration,
)
from tests.support.clients import saved, task
from tests.support.everything import everything_logged
from tests.support.fake_peer import Cut, Ignore, Refuse, Say
from tests.support.fake_workers import FakeWorkers
from tests.support.worker_client import TEXT
from tests.support.working import WAIT_S, working

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.platform import Node

PAYLOAD = "canary-payload-4f1e"
RESULT = "canary-result-90ab"
LIMITS = Limits(control_s=0.3, handshake_s=2.0)


def shown(thing: object) -> str:
    return f"{thing!r} {thing!s} {thing}"


class Written:
    """What a program that logs all it has would write."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.errors: list[BaseException] = []

    def keep(self, *things: object) -> None:
        self.texts.extend(shown(thing) for thing in things)

    async def fails(self, call: Awaitable[Any]) -> None:
        """Await a call that fails; keep the error with its traceback and the locals of all its frames."""
        with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever comes is searched
            await asyncio.wait_for(call, WAIT_S)
        error = caught.value
        self.errors.append(error)
        report = traceback.TracebackException.from_exception(error, capture_locals=True)
        self.texts.append("".join(report.format()))
        self.texts.append(f"{shown(error)} {error.__dict__!r} {error.args!r}")


async def _good_and_bad(orbit: FakeWorkers, registration: WorkerRegistration, written: Written) -> list[Attempt]:
    used: list[Attempt] = []
    payload = b'{"text":"' + PAYLOAD.encode() + b'"}'

    async def attempt(connection: WorkerConnection) -> Attempt:
        orbit.assign(orbit.assignment(payload))
        assignment = await connection.next_assignment()
        written.keep(assignment, assignment.task, assignment.attempt, connection)
        used.append(assignment.attempt)
        return assignment.attempt

    def report(of: Attempt, result: str = f'{{"text":"{RESULT}"}}') -> Finish:
        made = Finish(attempt=of, outcome=Outcome.SUCCEEDED, result=result)
        written.keep(made)
        return made

    async with orbit.client() as client:
        written.keep(client, client.credentials, registration)
        orbit.refuse_upgrades.append((401, ErrorCode.UNAUTHENTICATED))
        await written.fails(client.dial_worker(registration))
        orbit.misbehave("worker.hello", Refuse(ErrorCode.INVALID_PROOF))
        await written.fails(client.dial_worker(registration))
        orbit.misbehave("worker.hello", Cut())
        await written.fails(client.dial_worker(registration))
        async with working(client, registration) as connection:
            one = await attempt(connection)
            written.keep(await connection.start(new_worker_message_id(), one))
            written.keep(await connection.resume(new_worker_message_id(), one))
            for result in (
                f'"{RESULT}',
                "null",
                f'"{RESULT}\\ud800"',
                f'"{RESULT}\ud800"',
                f'"{RESULT}{"x" * 262144}"',
            ):
                await written.fails(connection.finish(new_worker_message_id(), report(one, result)))
            await written.fails(
                connection.finish(
                    new_worker_message_id(),
                    Finish(attempt=one, outcome=Outcome.FAILED, result=f'"{RESULT}"', error_code="oops"),
                )
            )
            await written.fails(connection.finish("no id", report(one)))
            orbit.misbehave("task.finish", Refuse(ErrorCode.STALE_EPOCH))
            await written.fails(connection.finish(new_worker_message_id(), report(one)))
            written.keep(await connection.finish(new_worker_message_id(), report(one)))
            orbit.misbehave("task.finish", Ignore())
            await written.fails(connection.finish(new_worker_message_id(), report(await attempt(connection))))
            await written.fails(connection.next_assignment())
            await written.fails(connection.start(new_worker_message_id(), one))
        for misdeed in (Cut(), Say(f'{{"{RESULT}":"{PAYLOAD}"}}'), Say("x" * 600_000)):
            async with working(client, registration) as connection:
                orbit.misbehave("task.finish", misdeed)
                await written.fails(connection.finish(new_worker_message_id(), report(await attempt(connection))))
                written.keep(connection, connection.error)
        async with working(client, registration) as connection:
            for _ in range(9):
                orbit.assign(orbit.assignment(payload))
            await connection.done()
            await written.fails(connection.next_assignment())
        async with working(client, registration) as connection:
            orbit.misbehave("task.finish", Ignore())
            finishing = asyncio.create_task(
                connection.finish(new_worker_message_id(), report(await attempt(connection)))
            )
            await asyncio.sleep(0)
            finishing.cancel()
            await asyncio.wait([finishing])
    return used


async def test_nothing_secret_is_written_anywhere() -> None:
    loop = asyncio.get_running_loop()
    written = Written()
    async with FakeWorkers(limits=LIMITS) as orbit:
        registration = orbit.registration()
        loop.set_debug(True)
        try:
            with everything_logged() as everything:
                used = await _good_and_bad(orbit, registration, written)
        finally:
            loop.set_debug(False)
        secrets = {one.lease_secret.reveal() for one in used} | {
            orbit.token.reveal(),
            registration.instance_secret.reveal(),
            PAYLOAD,
            RESULT,
        }
    text = "\n".join([*everything.lines, *written.texts])
    assert len(used) == 6
    assert len(secrets) == 10
    assert len(written.errors) == 18
    assert "orbit/sdk/worker.py" in text, "no traceback was kept"
    assert {secret for secret in secrets if secret in text} == set()


async def test_nothing_secret_is_written_by_worker_and_platform_together(
    node: Node, credentials: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with everything_logged() as everything:
        async with OrbitClient(node.base_url, saved(tmp_path / "credentials.json", credentials)) as client:
            registration = new_worker_registration(client.credentials.queue_id, 4, [TEXT])
            payload = Raw(b'{"text":"' + PAYLOAD.encode() + b'"}')
            await client.submit_task(new_worker_message_id(), task(client, payload=payload))
            async with working(client, registration) as connection:
                attempt = (await asyncio.wait_for(connection.next_assignment(), WAIT_S)).attempt
                await connection.start(new_worker_message_id(), attempt)
                report = Finish(attempt=attempt, outcome=Outcome.SUCCEEDED, result=f'{{"text":"{RESULT}"}}')
                await connection.finish(new_worker_message_id(), report)
    out, err = capfd.readouterr()
    text = "\n".join([*everything.lines, out, err])
    assert "worker greeted" in text
    secrets = (
        credentials["token"],
        registration.instance_secret.reveal(),
        attempt.lease_secret.reveal(),
        PAYLOAD,
        RESULT,
    )
    assert {secret for secret in secrets if secret in text} == set()

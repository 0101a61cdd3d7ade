"""From the dial to the welcome: what a worker says, what it is told when it may not, and that nothing stays open."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from orbit.protocol.errors import ErrorCode
from orbit.protocol.limits import Limits
from orbit.protocol.values import Secret
from orbit.sdk import (
    Credentials,
    HTTPError,
    InvalidRequest,
    OrbitClient,
    TransportError,
    WorkerDisconnected,
    WorkerError,
    WorkerProtocolError,
    WorkerTimeout,
    new_worker_registration,
)
from tests.support.fake_peer import Cut, Ignore, Refuse, Say
from tests.support.fake_workers import CAPABILITY, FakeWorkers
from tests.support.working import WAIT_S, at_work, failure, working


@asynccontextmanager
async def raw(answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[Any]]) -> AsyncIterator[str]:
    """A TCP server that says what the test wants; gives its URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        finally:
            writer.close()

    running = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{running.sockets[0].getsockname()[1]}"
    finally:
        running.close()


def left() -> list[str]:
    """Readers of connections that still run."""
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name() == "orbit-worker-reader"]


class Recorded(FakeWorkers):
    """Keeps the upgrade's request."""

    request: Request

    def _http(self, connection: Any, request: Request) -> Response | None:
        self.request = request
        return super()._http(connection, request)


async def test_the_upgrade_asks_for_the_subprotocol_at_its_path_and_for_nothing_else() -> None:
    async with Recorded() as orbit, orbit.client() as client, working(client, orbit.registration()):
        assert orbit.request.path == "/v1/workers"
        assert orbit.request.headers["Sec-WebSocket-Protocol"] == "pulse.worker.v1"
        assert "Sec-WebSocket-Extensions" not in orbit.request.headers
        assert orbit.request.headers["Authorization"] == f"Bearer {orbit.token.reveal()}"


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (401, ErrorCode.UNAUTHENTICATED),
        (403, ErrorCode.PERMISSION_DENIED),
        (426, ErrorCode.UNSUPPORTED_PROTOCOL),
        (429, ErrorCode.RESOURCE_EXHAUSTED),
        (503, ErrorCode.UNAVAILABLE),
        (302, None),
    ],
)
async def test_a_refused_upgrade_is_an_http_error(status: int, code: ErrorCode | None) -> None:
    async with FakeWorkers() as orbit, orbit.client() as client:
        orbit.refuse_upgrades.append((status, code))
        error = await failure(client.dial_worker(orbit.registration()), HTTPError)
        assert (error.status, error.code) == (status, code)
        assert orbit.dials == 1
    assert left() == []


@pytest.mark.parametrize("code", [ErrorCode.NOT_FOUND, ErrorCode.INVALID_PROOF, ErrorCode.UNAVAILABLE])
async def test_a_refused_hello_is_a_workers_error(code: ErrorCode) -> None:
    async with FakeWorkers() as orbit, orbit.client() as client:
        orbit.misbehave("worker.hello", Refuse(code))
        error = await failure(client.dial_worker(orbit.registration()), WorkerError)
        assert (error.code, str(error)) == (code, f"the platform refused it: {code}")
        await orbit.until(lambda: not orbit.connection.open)
    assert left() == []


@pytest.mark.parametrize("selected", [None, Subprotocol("pulse.worker.v2")])
async def test_another_subprotocol_is_none(selected: Subprotocol | None) -> None:
    async with FakeWorkers() as orbit, orbit.client() as client:
        orbit.subprotocol = selected
        await failure(client.dial_worker(orbit.registration()), WorkerProtocolError)
    assert left() == []


async def test_a_welcome_for_somebody_else_is_none() -> None:
    async with FakeWorkers() as orbit, orbit.client() as client:
        other = json.dumps({"protocol_version": "1", "type": "worker.welcome", "message_id": "1" * 32, "body": {}})
        orbit.misbehave("worker.hello", Say(other))
        await failure(client.dial_worker(orbit.registration()), WorkerProtocolError)
        await orbit.until(lambda: not orbit.connection.open)
        assert orbit.connection.socket.close_code == 1002
    assert left() == []


async def test_nobody_there_is_a_transport_error_and_nothing_was_sent() -> None:
    async with FakeWorkers() as orbit:
        registration = orbit.registration()
    async with orbit.client() as client:
        error = await failure(client.dial_worker(registration), TransportError)
    assert not error.outcome_unknown
    assert left() == []


async def test_a_connection_that_ends_before_the_welcome_is_a_disconnection() -> None:
    async with FakeWorkers() as orbit, orbit.client() as client:
        orbit.misbehave("worker.hello", Cut())
        await failure(client.dial_worker(orbit.registration()), WorkerDisconnected)
    assert left() == []


async def test_the_time_of_the_handshake_includes_the_welcome() -> None:
    assert Limits().handshake_s == 8.0
    async with FakeWorkers(limits=Limits(handshake_s=0.2)) as orbit, orbit.client() as client:
        orbit.misbehave("worker.hello", Ignore())
        error = await failure(client.dial_worker(orbit.registration()), WorkerTimeout)
        assert (str(error), error.__context__) == ("no welcome in time", None)
        await orbit.until(lambda: not orbit.connection.open)
    assert left() == []


async def test_an_upgrade_that_is_never_answered_is_given_up() -> None:
    async def stall(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    credentials = Credentials(queue_id="a" * 32, token=Secret("x" * 32))
    async with raw(stall) as url, OrbitClient(url, credentials, limits=Limits(handshake_s=0.2)) as client:
        error = await failure(client.dial_worker(new_worker_registration("a" * 32, 1, [CAPABILITY])), TransportError)
    assert str(error) == "no connection in time; nothing was sent"


@pytest.mark.parametrize("greeted", [False, True])
async def test_cancelling_the_dial_leaves_nothing_open(greeted: bool) -> None:
    arrived, gone = asyncio.Event(), asyncio.Event()

    async def stall(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        arrived.set()
        await reader.read()
        gone.set()

    async with FakeWorkers() as orbit, raw(stall) as silent:
        orbit.misbehave("worker.hello", Ignore())
        async with orbit.client(None if greeted else silent) as client:
            dialling = asyncio.create_task(client.dial_worker(orbit.registration()))
            if greeted:
                await orbit.until(lambda: orbit.saw("worker.hello") != [])
            else:
                await asyncio.wait_for(arrived.wait(), WAIT_S)
            dialling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await dialling
            assert left() == []
            if greeted:
                await orbit.until(lambda: not orbit.connection.open)
            else:
                await asyncio.wait_for(gone.wait(), WAIT_S)


async def test_a_registration_that_breaks_a_rule_is_not_dialled_with() -> None:
    async with FakeWorkers() as orbit, orbit.client() as client:
        broken = replace(orbit.registration(), capabilities=(CAPABILITY, CAPABILITY))
        await failure(client.dial_worker(broken), InvalidRequest)
        assert orbit.dials == 0


async def test_leaving_the_context_closes_the_connection() -> None:
    async with at_work() as (orbit, _):
        client = orbit.client()
        async with client, await client.dial_worker(orbit.registration()) as connection:
            assert connection.error is None
            assert "error=None" in repr(connection)
        assert "WorkerClosed" in repr(connection)
        await orbit.until(lambda: not orbit.connection.open)

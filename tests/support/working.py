"""An open `WorkerConnection` for tests: dialled, opened for assignments when asked, closed, nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from orbit.protocol.limits import Limits
from orbit.sdk import OrbitError, WorkerConnection, WorkerRegistration
from orbit.sdk.client import OrbitClient
from orbit.sdk.worker import new_worker_message_id
from tests.support.fake_workers import FakeWorkers

WAIT_S = 20.0

E = TypeVar("E", bound=BaseException)


@asynccontextmanager
async def working(
    client: OrbitClient, registration: WorkerRegistration, *, capacity: int | None = 4
) -> AsyncIterator[WorkerConnection]:
    """Dial, confirm a first capacity unless it is None, and close; the client stays open."""
    connection = await asyncio.wait_for(client.dial_worker(registration), WAIT_S)
    try:
        if capacity is not None:
            await connection.capacity(new_worker_message_id(), sequence=1, capacity=capacity, drain=False)
        yield connection
    finally:
        await asyncio.wait_for(connection.close(), WAIT_S)
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name() == connection._reader.get_name()] == []


@asynccontextmanager
async def at_work(
    *, limits: Limits | None = None, capacity: int | None = 4, **options: Any
) -> AsyncIterator[tuple[FakeWorkers, WorkerConnection]]:
    """A platform in memory and one open connection to it, of a registration with these options."""
    async with (
        FakeWorkers(limits=limits) as orbit,
        orbit.client() as client,
        working(client, orbit.registration(**options), capacity=capacity) as connection,
    ):
        yield orbit, connection


async def failure(call: Coroutine[Any, Any, Any], kind: type[E]) -> E:
    """Await a call that fails; the error, which must be of exactly this class."""
    with pytest.raises(kind) as caught:
        await asyncio.wait_for(call, WAIT_S)
    assert type(caught.value) is kind
    return caught.value


async def ended(connection: WorkerConnection, kind: type[OrbitError]) -> OrbitError:
    """Wait until the connection is over, for this reason."""
    await asyncio.wait_for(connection.done(), WAIT_S)
    error = connection.error
    assert type(error) is kind, error
    return error

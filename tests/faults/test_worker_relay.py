"""A worker behind a relay that drops, cuts and holds single frames, on a real platform over real MySQL.

The answer to each operation is lost at each position. Repeating the operation over a new connection, with the same
identity, proof, message id and content, gives the receipt of the first time.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from orbit.protocol.limits import Limits
from orbit.protocol.values import new_id
from orbit.sdk import (
    Attempt,
    Disposition,
    Finish,
    OrbitClient,
    Outcome,
    WorkerConnection,
    WorkerDisconnected,
    WorkerError,
    WorkerRegistration,
    WorkerResult,
    WorkerTimeout,
    new_worker_message_id,
    new_worker_registration,
)
from tests.support.clients import saved, task
from tests.support.rows import rows
from tests.support.worker_client import TEXT
from tests.support.working import failure, working
from toxiproxy import CutAtFrame, DropFrame, End, FrameRelay

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tests.support.platform import Node
    from toxiproxy.faults import Fault

# The real time of a control operation is 10 s; a lost answer teaches the same in half a second.
IMPATIENT = Limits(control_s=0.5)
WAIT_S = 20.0
RESULT = '{"text":"A"}'

RECEIPT = "SELECT receipt FROM worker_receipts WHERE attempt_id = :attempt_id AND message_id = :message_id"
EVENTS = "SELECT event_type FROM events WHERE task_id = :task_id ORDER BY task_version"


@dataclass(frozen=True)
class Bench:
    """A worker's identity, a relay, and a client behind it and one beside it."""

    node: Node
    relay: FrameRelay
    client: OrbitClient
    direct: OrbitClient
    registration: WorkerRegistration

    async def submitted(self, **given: Any) -> str:
        return (await self.direct.submit_task(new_id(), task(self.direct, **given))).task.task_id

    async def receipt(self, attempt: Attempt, message_id: str) -> dict[str, Any] | None:
        """What the platform has recorded of a message."""
        found = await rows(self.node, RECEIPT, attempt_id=attempt.attempt_id, message_id=message_id)
        return json.loads(found[0][0]) if found else None

    async def recorded(self, attempt: Attempt, message_id: str) -> dict[str, Any]:
        """Wait until the platform has recorded a message."""
        async with asyncio.timeout(WAIT_S):
            while (receipt := await self.receipt(attempt, message_id)) is None:
                await asyncio.sleep(0.01)
            return receipt


@pytest.fixture
async def bench(node: Node, credentials: dict[str, Any], tmp_path: Path) -> AsyncIterator[Bench]:
    address = urlsplit(node.base_url)
    assert address.hostname is not None
    assert address.port is not None
    content = saved(tmp_path / "credentials.json", credentials)
    async with (
        FrameRelay(address.hostname, address.port) as relay,
        OrbitClient(relay.url, content, limits=IMPATIENT) as client,
        OrbitClient(node.base_url, content) as direct,
    ):
        yield Bench(node, relay, client, direct, new_worker_registration(content.queue_id, 4, [TEXT]))


def operation(name: str, attempt: Attempt, message_id: str) -> Callable[[WorkerConnection], Any]:
    """The same operation, as often as it is called."""
    if name == "task.start":
        return lambda connection: connection.start(message_id, attempt)
    if name == "task.renew":
        return lambda connection: connection.renew(message_id, attempt)
    report = Finish(attempt=attempt, outcome=Outcome.SUCCEEDED, result=RESULT)
    return lambda connection: connection.finish(message_id, report)


@dataclass(frozen=True)
class Position:
    """Where the exchange of one operation breaks, whether the platform carries it out, and whether the worker hears it.

    `arrives` None: the platform has the request, and notices at the same time that the worker has gone.
    """

    name: str
    fault: Callable[[str], Fault]
    arrives: bool | None
    answered: bool = False


POSITIONS = [
    Position("request dropped", lambda name: DropFrame(name, "client"), arrives=False),
    Position("cut before the request", lambda name: CutAtFrame(name, "client"), arrives=False),
    Position("cut after the request", lambda name: CutAtFrame(name, "client", when="after", end=End.RST), arrives=None),
    Position("answer dropped", lambda name: DropFrame("ack", answers=name), arrives=True),
    Position("cut before the answer", lambda name: CutAtFrame("ack", answers=name), arrives=True),
    Position("reset before the answer", lambda name: CutAtFrame("ack", answers=name, end=End.RST), arrives=True),
    Position(
        "cut after the answer",
        lambda name: CutAtFrame("ack", answers=name, when="after"),
        arrives=True,
        answered=True,
    ),
]
LAST = {"task.start": "task.started", "task.renew": "task.started", "task.finish": "task.succeeded"}


@pytest.mark.parametrize("position", POSITIONS, ids=lambda position: position.name.replace(" ", "-"))
@pytest.mark.parametrize("name", ["task.start", "task.renew", "task.finish"])
async def test_an_operation_whose_exchange_breaks_is_settled_under_its_message_id(
    bench: Bench, name: str, position: Position
) -> None:
    task_id = await bench.submitted()
    message_id = new_worker_message_id()
    first: WorkerResult | None = None
    async with working(bench.client, bench.registration) as connection:
        attempt = (await asyncio.wait_for(connection.next_assignment(), WAIT_S)).attempt
        if name != "task.start":
            await connection.start(new_worker_message_id(), attempt)
        run = operation(name, attempt, message_id)
        armed = bench.relay.arm(position.fault(name))
        if position.answered:
            first = await run(connection)
            await asyncio.wait_for(connection.done(), WAIT_S)
        else:
            with pytest.raises(WorkerDisconnected):
                await run(connection)
        assert isinstance(connection.error, WorkerDisconnected)
    assert armed.fired
    look = bench.recorded if position.arrives else bench.receipt
    before = await look(attempt, message_id)
    assert position.arrives is None or (before is not None) == position.arrives

    # The lease of the resume gives the right to go on, before anything is announced.
    async with working(bench.client, bench.registration, capacity=None) as connection:
        resumed = await connection.resume(new_worker_message_id(), attempt)
        if position.arrives is not None:
            assert resumed.active == (name != "task.finish" or not position.arrives)
        settled = await run(connection)
        again = await run(connection)
    assert settled.disposition is Disposition.APPLIED
    assert settled.receipt == again.receipt
    assert first is None or settled.receipt == first.receipt
    assert settled.receipt.to_body() == (before or await bench.receipt(attempt, message_id))
    assert (settled.lease.execution_deadline() is not None) == (name != "task.finish")
    events = [event for (event,) in await rows(bench.node, EVENTS, task_id=task_id)]
    assert events.count(LAST[name]) == 1
    assert events[-1] == LAST[name]


async def test_the_same_message_id_with_other_content_is_a_conflict(bench: Bench) -> None:
    await bench.submitted()
    async with working(bench.client, bench.registration) as connection:
        attempt = (await connection.next_assignment()).attempt
        await connection.start("1" * 32, attempt)
        armed = bench.relay.drop("ack", answers="task.finish")
        report = Finish(attempt=attempt, outcome=Outcome.SUCCEEDED, result=RESULT)
        await failure(connection.finish("2" * 32, report), WorkerTimeout)
    assert armed.fired
    await bench.recorded(attempt, "2" * 32)
    async with working(bench.client, bench.registration, capacity=None) as connection:
        other = Finish(attempt=attempt, outcome=Outcome.SUCCEEDED, result='{"text":"B"}')
        error = await failure(connection.finish("2" * 32, other), WorkerError)
        assert error.code == "IDEMPOTENCY_CONFLICT"
        error = await failure(connection.renew("2" * 32, attempt), WorkerError)
        assert error.code == "IDEMPOTENCY_CONFLICT"
        first = await connection.finish("2" * 32, report)
        # The same report under a new id: the first receipt.
        assert (await connection.finish("3" * 32, report)).receipt == first.receipt


async def test_an_assignment_that_is_dropped_is_not_started_and_not_forgotten(bench: Bench) -> None:
    armed = bench.relay.drop("task.assign")
    task_id = await bench.submitted()
    async with working(bench.client, bench.registration, capacity=1) as connection:
        await armed.wait(WAIT_S)
        assert (await bench.direct.get_task(task_id)).state == "LEASED"
        # The platform counts it against the worker's capacity until its lease is over.
        other = await bench.submitted()
        await connection.capacity(new_worker_message_id(), sequence=2, capacity=2, drain=False)
        assert (await asyncio.wait_for(connection.next_assignment(), WAIT_S)).task.task_id == other
    assert armed.fired

"""Network, node and MySQL fail at random under a runner: every call is accounted for, every task ends by the table.

It takes half a minute by default. ORBIT_TEST_CHAOS_S=120 makes it the two minutes of `make chaos`, with 200 tasks;
ORBIT_TEST_CHAOS_SEED chooses another course.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from msgspec import UNSET, Raw

from orbit.protocol.history_v1 import AttemptRecord
from orbit.protocol.http_v1 import RecoverySafety, RetryPolicy, SubmitTask, Task, TaskAccepted, TaskState
from orbit.protocol.limits import Limits
from orbit.protocol.values import Secret, new_id
from orbit.sandbox import PLATFORM_PRIVILEGES
from orbit.sdk import Credentials, HTTPError, OrbitClient, TaskContext, TransportError, WorkerFailure, WorkerRunner
from orbit.sdk.supervise import Timing
from orbit.server.migrate import migrate
from tests.support.clients import task
from tests.support.platform import NodeProcess, fresh_credentials
from tests.support.runners import ENDED, counted, running, whole
from toxiproxy import Armed, CutAtFrame, DropFrame, End, FrameRelay

if TYPE_CHECKING:
    from orbit.mysql.dsn import DSN
    from orbit.sandbox import MySQLServer

CHAOS_S = float(os.environ.get("ORBIT_TEST_CHAOS_S", "12"))
SEED = int(os.environ.get("ORBIT_TEST_CHAOS_SEED", "1"))
TASKS = 200 if CHAOS_S >= 60 else 80
ATTEMPTS = 4
ARMED = 3  # frame faults that wait for their frame
QUIET_S = 60.0
# A node whose leases last three seconds: what is lost comes back soon.
LEASE_S = 3.0
NODE = f"""
from orbit.cli import main
from orbit.protocol.limits import Limits
from orbit.server import cli
cli.Limits = lambda: Limits(task_lease_s={LEASE_S}, session_s=6.0)
main.main()
"""
IMPATIENT = Limits(task_lease_s=LEASE_S, control_s=1.0, handshake_s=3.0, heartbeat_s=0.5)
COMMANDS = ("task.start", "task.finish", "task.renew", "worker.capacity")
LONG_S = 1.5  # of a lease of three seconds: such a handler is renewed


@dataclass
class Handlers:
    """What was called, and what each call said; by attempt."""

    dice: random.Random
    said: dict[str, str] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, context: TaskContext) -> float:
        with self.lock:
            self.calls[context.attempt_id] += 1
            return self.dice.random()

    def end(self, context: TaskContext, luck: float) -> str:
        """Fail now and then, raise now and then."""
        if luck < 0.1:
            self.said[context.attempt_id] = "FAILED"
            raise WorkerFailure("UNLUCKY", retryable=True)
        if luck < 0.15:
            self.said[context.attempt_id] = "UNKNOWN"
            raise ValueError
        self.said[context.attempt_id] = "SUCCEEDED"
        return context.attempt_id

    async def in_loop(self, payload: bool, context: TaskContext) -> str:
        luck = self.begin(context)
        await asyncio.sleep(LONG_S if payload or luck > 0.9 else luck * 0.2)
        return self.end(context, luck)

    def in_thread(self, payload: bool, context: TaskContext) -> str:
        luck = self.begin(context)
        context.cancelled.wait(LONG_S if payload or luck > 0.9 else luck * 0.2)
        return self.end(context, luck)


@dataclass
class Trouble:
    """One thing after the other goes wrong. `happened` counts what did."""

    dice: random.Random
    mysql: MySQLServer
    node: NodeProcess
    relay: FrameRelay
    happened: Counter[str] = field(default_factory=Counter)
    armed: list[Armed] = field(default_factory=list)

    async def cause(self) -> None:
        await self.frame()
        luck = self.dice.random()
        if luck < 0.2 or self.happened["node"] == 0:
            await self.node.kill()
            await self.node.start()
            self.happened["node"] += 1
        elif luck < 0.35 or self.happened["mysql"] == 0:
            control = self.mysql.control
            assert control is not None
            await asyncio.to_thread(control.kill)
            await asyncio.sleep(self.dice.random())
            await asyncio.to_thread(control.start)
            self.happened["mysql"] += 1

    async def frame(self) -> None:
        """Lose an answer, a request or the whole connection at one of them."""
        command = self.dice.choice(COMMANDS)
        fault = self.dice.choice(
            [
                DropFrame("ack", answers=command),
                CutAtFrame("ack", answers=command, when="before", end=End.RST),
                CutAtFrame("ack", answers=command, when="after", end=End.RST),
                CutAtFrame(command, direction="client", when="before", end=End.RST),
                CutAtFrame(command, direction="client", when="after", end=End.FIN),
                CutAtFrame("task.assign", when="before", end=End.RST),
            ]
        )
        if sum(not one.fired for one in self.armed) < ARMED:
            self.armed.append(self.relay.arm(fault))
            self.happened[f"{type(fault).__name__} {fault.answers or ''} {fault.type}"] += 1
        with suppress(TimeoutError):  # it fires later
            await self.armed[-1].wait(2.0)

    @property
    def over(self) -> bool:
        """Whether every armed fault has fired."""
        return all(one.fired for one in self.armed)


async def submit(client: OrbitClient, number: int, *, long: bool = False) -> str:
    """Submit a task until the platform has it; every other one may be tried again after an unknown effect."""
    content: SubmitTask = task(
        client,
        handler=("chaos.async", "chaos.sync")[number % 2],
        payload=Raw(b"true" if long else b"false"),
        recovery_safety=(RecoverySafety.IDEMPOTENT, RecoverySafety.RECONCILE_ONLY)[number // 2 % 2],
        retry=RetryPolicy(max_attempts=ATTEMPTS, initial_delay_ms=50, max_delay_ms=200, attempt_timeout_ms=60_000),
    )
    key = new_id()
    accepted: TaskAccepted = await persist(lambda: client.submit_task(key, content))
    return accepted.task.task_id


async def persist(call: Any) -> Any:
    """Repeat a call that may be repeated until there is an answer."""
    async with asyncio.timeout(QUIET_S):
        while True:
            try:
                return await call()
            except (HTTPError, TransportError) as error:
                if not error.temporary:
                    raise
            await asyncio.sleep(0.05)


def expected(found: Task, attempts: list[AttemptRecord]) -> TaskState:
    """What the seed's table makes of these attempts, written out by hand."""
    uncertain, state = False, TaskState.WAITING
    safe = found.recovery_safety is RecoverySafety.IDEMPOTENT
    for number, attempt in enumerate(attempts, 1):
        assert state is TaskState.WAITING, "an attempt after the end"
        left = number < ATTEMPTS
        match attempt.outcome, attempt.retryable:
            case "SUCCEEDED", False:
                state = TaskState.SUCCEEDED
            case ("FAILED", True) | ("UNSTARTED", False):
                if not left or (uncertain and not safe):
                    state = TaskState.NEEDS_REVIEW if uncertain else TaskState.FAILED
            case (("UNKNOWN" | "LEASE_EXPIRED"), False):
                uncertain = True
                if not left or not safe:
                    state = TaskState.NEEDS_REVIEW
            case other:
                raise AssertionError(other)
    return state


def account(handlers: Handlers, attempts: list[AttemptRecord]) -> None:
    """Every call belongs to a started attempt, nobody was called twice, and what was said is what stands there."""
    by_id = {one.attempt_id: one for one in attempts}
    assert set(handlers.calls.values()) <= {1}
    for attempt_id in handlers.calls:
        assert by_id[attempt_id].started_at is not UNSET, "a call without a start"
    for attempt_id, one in by_id.items():
        called = attempt_id in handlers.calls
        if one.outcome in ("SUCCEEDED", "FAILED"):
            assert called
            assert handlers.said[attempt_id] == one.outcome
        elif one.outcome == "UNSTARTED":
            assert not called
        elif one.outcome == "UNKNOWN" and not called:
            assert one.error_code == "HANDLER_NOT_CALLED"


async def finished(client: OrbitClient, task_ids: list[str]) -> list[Task]:
    """Wait until every task is over; the tasks."""
    found: list[Task] = []
    async with asyncio.timeout(QUIET_S):
        for task_id in task_ids:
            now: Task = await persist(lambda task_id=task_id: client.get_task(task_id))
            while now.state not in ENDED:
                await asyncio.sleep(0.1)
                now = await persist(lambda task_id=task_id: client.get_task(task_id))
            found.append(now)
    return found


@pytest.mark.timeout(CHAOS_S + 180)
async def test_whatever_fails_every_call_is_accounted_for_and_every_task_ends_by_the_table(
    own_mysql: MySQLServer,
) -> None:
    dice = random.Random(SEED)
    handlers = Handlers(random.Random(SEED + 1))
    dsn: DSN = own_mysql.create_account(own_mysql.create_database("chaos"), PLATFORM_PRIVILEGES)
    await asyncio.to_thread(migrate, dsn)
    content = await fresh_credentials(dsn)
    credentials = Credentials(queue_id=content["queue_id"], token=Secret(content["token"]))
    runner = WorkerRunner(concurrency=8, timing=Timing(jitter=lambda: dice.random() * 0.05))
    runner.handler("chaos.async", version="v1", payload_version="v1")(handlers.in_loop)
    runner.handler("chaos.sync", version="v1", payload_version="v1")(handlers.in_thread)

    async with NodeProcess(dsn, program=("-c", NODE)) as node:
        address = urlsplit(node.base_url)
        assert address.hostname is not None
        assert address.port is not None
        relay = FrameRelay(address.hostname, address.port)
        async with (
            relay,
            OrbitClient(node.base_url, credentials) as direct,
            OrbitClient(relay.url, credentials, limits=IMPATIENT) as behind,
            running(runner, behind, stop_s=10.0),
        ):
            trouble = Trouble(dice, own_mysql, node, relay)
            task_ids: list[str] = []
            loop = asyncio.get_running_loop()
            begun = loop.time()
            while loop.time() - begun < CHAOS_S:
                share = (loop.time() - begun) / CHAOS_S
                while len(task_ids) < TASKS * min(1.0, share + 0.2):
                    task_ids.append(await submit(direct, len(task_ids)))
                await trouble.cause()
            while len(task_ids) < TASKS:
                task_ids.append(await submit(direct, len(task_ids)))
            # What is still armed needs frames of its kind to fire at; a long task brings all kinds.
            async with asyncio.timeout(QUIET_S):
                while not trouble.over:
                    task_ids.append(await submit(direct, len(task_ids), long=True))
                    await asyncio.sleep(0.5)
            found = await finished(direct, task_ids)
            await counted(runner, lambda counts: counts.reporting == counts.calling == 0)
            attempts = {one.task_id: (await direct.list_attempts(one.task_id)).attempts for one in found}

    print(dict(trouble.happened), runner.counts)
    account(handlers, [one for of_task in attempts.values() for one in of_task])
    assert {one.task_id: one.state for one in found} == {
        one.task_id: expected(one, attempts[one.task_id]) for one in found
    }
    counts = runner.counts
    assert whole(counts)
    assert counts.started == counts.confirmed
    assert counts.reconnects > 0
    assert min(trouble.happened["node"], trouble.happened["mysql"]) >= 1
    assert len(trouble.armed) >= 3

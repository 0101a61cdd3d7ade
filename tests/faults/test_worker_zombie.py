"""A worker that is stopped past its lease and comes back, and workers whose wall clock is a day off: real processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orbit.protocol.http_v1 import RecoverySafety, RetryPolicy
from orbit.protocol.limits import Limits
from orbit.protocol.values import new_id
from orbit.sdk import (
    Attempt,
    Disposition,
    Finish,
    OrbitClient,
    Outcome,
    WorkerConnection,
    WorkerResult,
    new_worker_message_id,
    new_worker_registration,
)
from tests.support.clients import saved, subscribe, task
from tests.support.platform import fresh_credentials, running_node
from tests.support.receiver import bench
from tests.support.receiver_process import ReceiverProcess, message, outcome, receiver_variables
from tests.support.rows import rows
from tests.support.worker_client import TEXT
from tests.support.working import working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Self

    from orbit.mysql.dsn import DSN
    from tests.support.mysql import ReceiverDSNs
    from tests.support.platform import Node

ROOT = Path(__file__).parents[2]
WAIT_S = 20.0
LEASE_S = 1.0
DAY_S = 86_400.0
RESULT_EVENTS = ["task.succeeded", "task.failed", "task.cancelled", "task.needs_review"]


class WorkerProcess:
    """One `tests.support.worker_process`; leaving the context kills what is still there."""

    def __init__(self, variables: dict[str, str], result: str, *, clock_off_s: float = 0.0) -> None:
        self._variables = {**variables, "WORKER_CLOCK_OFF_S": str(clock_off_s)}
        self._result = result
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.worker_process", self._result),
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], **self._variables},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def said(self, what: str) -> dict[str, Any]:
        """The next line, which must be this one."""
        assert self._process is not None
        assert self._process.stdout is not None
        async with asyncio.timeout(WAIT_S):
            line: dict[str, Any] = json.loads(await self._process.stdout.readline())
        assert line["said"] == what, line
        return line

    async def go_on(self) -> None:
        """Let it report."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        await self._process.stdin.drain()

    def send(self, which: signal.Signals) -> None:
        """Send a signal."""
        assert self._process is not None
        self._process.send_signal(which)


@dataclass(frozen=True)
class Place:
    """A node with short leases, a client, and the environment of a worker process."""

    node: Node
    client: OrbitClient
    credentials: dict[str, Any]
    variables: dict[str, str]

    async def ended_leases(self, attempt_id: str) -> None:
        """Wait until the platform has ended an attempt."""
        async with asyncio.timeout(WAIT_S):
            while await rows(self.node, STATE, attempt_id=attempt_id) != [("ENDED", "LEASE_EXPIRED")]:
                await asyncio.sleep(0.02)


STATE = "SELECT state, outcome FROM attempts WHERE attempt_id = :attempt_id"
EVENTS = "SELECT event_type FROM events WHERE task_id = :task_id ORDER BY task_version"


@pytest.fixture
async def place(platform_dsn: DSN, tmp_path: Path) -> AsyncIterator[Place]:
    async with running_node(platform_dsn, limits=Limits(task_lease_s=LEASE_S, node_poll_s=0.1)) as node:
        credentials = await fresh_credentials(platform_dsn)
        path = tmp_path / "worker.json"
        async with OrbitClient(node.base_url, saved(path, credentials)) as client:
            yield Place(node, client, credentials, {"ORBIT_URL": node.base_url, "ORBIT_CREDENTIALS_FILE": str(path)})


@pytest.mark.parametrize("first", ["the zombie reports first", "the zombie reports last"])
async def test_a_zombies_report_is_evidence_and_the_other_workers_counts(
    place: Place, tmp_path: Path, receiver_dsns: ReceiverDSNs, first: str
) -> None:
    subscription_id = await subscribe(place.client, event_types=RESULT_EVENTS)
    policy = RetryPolicy(max_attempts=2, initial_delay_ms=1, max_delay_ms=1)
    safe = RecoverySafety.IDEMPOTENT
    async with bench(receiver_dsns) as receiver:
        variables = receiver_variables(
            tmp_path,
            url=place.node.base_url,
            credentials=place.credentials,
            dsn=receiver.dsns.run,
            subscription_id=subscription_id,
        )
        async with (
            ReceiverProcess("consume", variables=variables) as consuming,
            WorkerProcess(place.variables, "A") as zombie,
        ):
            await consuming.logged(message("consuming"))
            work = task(place.client, retry=policy, recovery_safety=safe)
            task_id = (await place.client.submit_task(new_id(), work)).task.task_id
            leased = await zombie.said("leased")
            assert (leased["task_id"], leased["epoch"]) == (task_id, 1)
            await zombie.said("started")
            zombie.send(signal.SIGSTOP)
            await place.ended_leases(leased["attempt_id"])

            registration = new_worker_registration(place.credentials["queue_id"], 1, [TEXT])
            async with working(place.client, registration, capacity=1) as other:
                assignment = await asyncio.wait_for(other.next_assignment(), WAIT_S)
                assert (assignment.task.task_id, assignment.attempt.epoch) == (task_id, 2)
                assert assignment.task.effect_uncertain
                started = await other.start(new_worker_message_id(), assignment.attempt)
                assert started.lease.execution_deadline() is not None
                if first == "the zombie reports first":
                    assert await _late(zombie) == {"disposition": "EVIDENCE_ONLY", "task_state": "RUNNING"}
                    finished = await _finish(other, assignment.attempt)
                else:
                    finished = await _finish(other, assignment.attempt)
                    assert await _late(zombie) == {"disposition": "EVIDENCE_ONLY", "task_state": "SUCCEEDED"}
                assert finished.disposition is Disposition.APPLIED
                assert finished.receipt.task_state == "SUCCEEDED"

            await consuming.logged(outcome("applied"))
            consuming.send(signal.SIGTERM)
            assert await consuming.ended() == (0, "")
        view = receiver.view()
    assert (view["task_id"], view["state"], view["result"]) == (task_id, "SUCCEEDED", '{"by":"B"}')
    assert view["applied_events"] == 1
    assert [event for (event,) in await rows(place.node, EVENTS, task_id=task_id)] == [
        "task.submitted",
        "task.leased",
        "task.started",
        "task.requeued",
        "task.leased",
        "task.started",
        "task.succeeded",
    ]
    now = await place.client.get_task(task_id)
    assert (now.state, now.attempt_count, now.effect_uncertain) == ("SUCCEEDED", 2, False)


async def _late(zombie: WorkerProcess) -> dict[str, Any]:
    """Let the zombie continue and report; what it was answered. Its own clock tells it that it may not go on."""
    zombie.send(signal.SIGCONT)
    await zombie.go_on()
    assert (await zombie.said("continued"))["may_run"] is False
    finished = await zombie.said("finished")
    return {name: finished[name] for name in ("disposition", "task_state")}


async def _finish(connection: WorkerConnection, attempt: Attempt) -> WorkerResult:
    report = Finish(attempt=attempt, outcome=Outcome.SUCCEEDED, result='{"by":"B"}')
    return await connection.finish(new_worker_message_id(), report)


@pytest.mark.parametrize("off_s", [-DAY_S, DAY_S])
async def test_a_wall_clock_that_is_a_day_off_changes_no_deadline(
    node: Node, credentials: dict[str, Any], tmp_path: Path, off_s: float
) -> None:
    path = tmp_path / "worker.json"
    async with OrbitClient(node.base_url, saved(path, credentials)) as client:
        variables = {"ORBIT_URL": node.base_url, "ORBIT_CREDENTIALS_FILE": str(path)}
        async with WorkerProcess(variables, "A", clock_off_s=off_s) as worker:
            task_id = (await client.submit_task(new_id(), task(client))).task.task_id
            await worker.said("leased")
            started = await worker.said("started")
            # Its clock is off, by its own account as seen against ours, by about the day that it was set off.
            assert abs(started["wall"] - time.time() - off_s) < DAY_S / 2
            # The real lease of 30 s less the margin, and less what the call took: nothing of the day is in it.
            assert 0 < started["left_s"] <= 29.75
            await worker.go_on()
            assert (await worker.said("continued"))["may_run"] is True
            finished = await worker.said("finished")
            assert (finished["disposition"], finished["task_state"]) == ("APPLIED", "SUCCEEDED")
        assert (await client.get_task(task_id)).state == "SUCCEEDED"

"""SIGTERM at random instants of a busy worker: what was started is confirmed, what was not is somebody else's.

The signals are real ones to this process, taken by the runner's own handlers; the platform is in memory, so that fifty
instants cost seconds. A worker of its own process on a real platform is at the end.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import UNSET

from orbit.protocol.attempt_v1 import AttemptState
from orbit.protocol.errors import ErrorCode
from orbit.protocol.http_v1 import TaskState
from orbit.protocol.values import new_id
from orbit.sdk import OrbitClient, TaskContext, WorkerFailure
from orbit.sdk.testing import Cut, Drop, FakePlatform, Misdeed, Refuse
from tests.support.clients import saved, task
from tests.support.runners import WAIT_S, ended, leftovers, quick, running, whole

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.platform import Node

ROOT = Path(__file__).parents[2]
TASKS = 60
GRACE_S = 5.0
ROUND = 10
MISDEEDS: tuple[Misdeed, ...] = (Cut(), Refuse(ErrorCode.UNAVAILABLE), Refuse(ErrorCode.RATE_LIMITED))


class Busy:
    """A worker of async and sync handlers that take a random while, and what they were called for."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.runner = quick(concurrency=6)
        self.calls: Counter[str] = Counter()
        self.runner.handler("async", version="v1", payload_version="v1")(self.in_loop)
        self.runner.handler("sync", version="v1", payload_version="v1")(self.in_thread)

    async def in_loop(self, payload: float, context: TaskContext) -> str:
        self.calls[context.attempt_id] += 1
        await asyncio.sleep(payload)
        return "done"

    def in_thread(self, payload: float, context: TaskContext) -> str:
        self.calls[context.attempt_id] += 1
        if context.cancelled.wait(payload):
            raise WorkerFailure("STOPPED_UNDONE", retryable=True)
        return "done"

    def submit(self, platform: FakePlatform) -> None:
        for number in range(TASKS):
            platform.submit(("async", "sync")[number % 2], self.dice.random() * 0.03, max_attempts=3)


def check(busy: Busy, platform: FakePlatform) -> None:
    """Every started attempt was reported, every call belongs to one, and nobody was called twice."""
    counts = busy.runner.counts
    assert whole(counts)
    started = {
        held.attempt.attempt_id: held
        for task in platform.tasks.values()
        for held in task.attempts
        if held.started_at is not None
    }
    assert set(busy.calls) <= set(started)
    assert set(busy.calls.values()) <= {1}
    assert all(len(held.reports) == 1 for held in started.values())
    assert all(held.state is AttemptState.ENDED for held in started.values())
    assert (counts.started, counts.confirmed) == (len(started), len(started))
    line = f"worker_drained=true started={len(started)} confirmed={len(started)} running=0"
    assert busy.runner.closing_line == line


async def one_instant(seed: int) -> tuple[int, int]:
    """Run a worker until a signal at a random instant; how many tasks it started and how many it left."""
    dice = random.Random(seed)
    busy = Busy(dice)
    async with FakePlatform() as platform, platform.client() as client:
        busy.submit(platform)
        for _ in range(dice.randrange(4)):
            kind = dice.choice(["task.start", "task.finish"])
            for _ in range(dice.randrange(20)):
                platform.misbehave(kind, dice.choice(MISDEEDS))
        serving = asyncio.create_task(busy.runner.serve(client, drain_s=GRACE_S))
        await asyncio.sleep(dice.random() * 0.25)
        os.kill(os.getpid(), signal.SIGTERM)
        if dice.random() < 0.3:
            await asyncio.sleep(dice.random() * 0.02)
            if not serving.done():
                os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(serving, GRACE_S + 1.0)
        assert leftovers() == []
        check(busy, platform)
        started = busy.runner.counts.started

        # What was claimed and not started comes back by its lease; another worker takes what is left.
        for task in platform.tasks.values():
            if task.state is TaskState.LEASED:
                task.lapse()
        platform.misdeeds.clear()
        other = Busy(dice)
        left = sum(task.state is TaskState.WAITING for task in platform.tasks.values())
        async with platform.client() as client_of_other, running(other.runner, client_of_other):
            states = await ended(platform)
        assert set(states) <= {TaskState.SUCCEEDED, TaskState.NEEDS_REVIEW}
        return started, left


@pytest.mark.parametrize("first", range(0, 50, ROUND))
async def test_every_started_attempt_is_confirmed_at_whichever_instant_the_signal_comes(first: int) -> None:
    found = [await one_instant(seed) for seed in range(first, first + ROUND)]
    # The instants hit workers with work behind them and before them.
    assert any(started > 0 and left > 0 for started, left in found), found


async def test_a_lost_report_does_not_keep_a_drain_beyond_its_grace() -> None:
    busy = Busy(random.Random(0))
    async with FakePlatform() as platform, platform.client() as client:
        busy.submit(platform)
        for _ in range(1_000):
            platform.misbehave("task.finish", Drop())
        serving = asyncio.create_task(busy.runner.serve(client, drain_s=1.0))
        await platform.until(lambda: platform.saw("task.finish") != [])
        os.kill(os.getpid(), signal.SIGTERM)
        # One second, and at most two for what is cancelled at the very end.
        await asyncio.wait_for(serving, 1.0 + 2.0)
        assert busy.runner.counts.abandoned > 0
        assert busy.runner.closing_line.startswith("worker_drained=false")
    assert leftovers() == []


WORKER = """
import random, time
from orbit.sdk import WorkerRunner

runner = WorkerRunner(concurrency=4)

@runner.handler("text.normalize", version="v1", payload_version="v1")
def handler(payload: object) -> str:
    time.sleep(random.random() * 0.05)
    return "done"

raise SystemExit(runner.main(drain_s=5.0))
"""


async def test_processes_on_a_real_platform_confirm_what_they_started(
    node: Node, credentials: dict[str, Any], tmp_path: Path
) -> None:
    dice = random.Random(4711)
    known = saved(tmp_path / "credentials.json", credentials)
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("ORBIT_")},
        "PYTHONPATH": str(ROOT),
        "ORBIT_URL": node.base_url,
        "ORBIT_CREDENTIALS_FILE": str(tmp_path / "credentials.json"),
    }
    async with OrbitClient(node.base_url, known) as client:
        task_ids = [await submitted(client) for _ in range(60)]
        lines = [await worker_until_signal(environ, dice.random() * 0.3) for _ in range(4)]
        attempts = [one for task_id in task_ids for one in (await client.list_attempts(task_id)).attempts]
    by_instance: Counter[str] = Counter(one.instance_id for one in attempts if one.started_at is not UNSET)
    assert all(one.outcome == "SUCCEEDED" for one in attempts if one.started_at is not UNSET)
    assert all(one.outcome is UNSET for one in attempts if one.started_at is UNSET)
    assert sorted(lines) == sorted(
        f"worker_drained=true started={number} confirmed={number} running=0\n"
        for number in [*by_instance.values(), *[0] * (len(lines) - len(by_instance))]
    )
    assert by_instance.total() > 0


STUCK = """
import sys, threading
from orbit.sdk import WorkerRunner

runner = WorkerRunner()

@runner.handler("text.normalize", version="v1", payload_version="v1")
def handler(payload: object) -> None:
    print("called", file=sys.stderr, flush=True)
    threading.Event().wait()

raise SystemExit(runner.main())
"""


async def test_a_process_whose_handler_never_ends_does_so_at_the_second_signal(
    node: Node, credentials: dict[str, Any], tmp_path: Path
) -> None:
    known = saved(tmp_path / "credentials.json", credentials)
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("ORBIT_")},
        "PYTHONPATH": str(ROOT),
        "ORBIT_URL": node.base_url,
        "ORBIT_CREDENTIALS_FILE": str(tmp_path / "credentials.json"),
    }
    async with OrbitClient(node.base_url, known) as client:
        task_id = await submitted(client)
        async with worker(environ, STUCK, until=b"called") as process:
            process.send_signal(signal.SIGTERM)
            await reads(process, b"draining")
            process.send_signal(signal.SIGTERM)
            out, _ = await process.communicate()
        now = await client.get_task(task_id)
    assert out == b"worker_drained=false started=1 confirmed=1 running=1\n"
    assert (now.state, now.error_code) == (TaskState.NEEDS_REVIEW, "WORKER_STOPPED")


async def submitted(client: OrbitClient) -> str:
    return (await client.submit_task(new_id(), task(client))).task.task_id


@asynccontextmanager
async def worker(environ: dict[str, str], program: str, *, until: bytes) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a worker process, entered when it has written `until`; leaving the context kills what is still there."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program),
        env=environ,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(WAIT_S):
            await reads(process, until)
            yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def reads(process: asyncio.subprocess.Process, what: bytes) -> None:
    """Read the process's stderr up to a line that holds this."""
    assert process.stderr is not None
    while what not in (line := await process.stderr.readline()):
        assert line, "it ended before"


async def worker_until_signal(environ: dict[str, str], seconds: float) -> str:
    """Run a worker process, end it by SIGTERM so long after it has connected; its closing line."""
    async with worker(environ, WORKER, until=b"connected") as process:
        await asyncio.sleep(seconds)
        process.send_signal(signal.SIGTERM)
        out, err = await process.communicate()
    assert process.returncode == 0, err
    return out.decode()

"""A running `WorkerRunner` for tests: started, stopped, its end checked."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from orbit.protocol.http_v1 import TaskState
from orbit.protocol.limits import Limits
from orbit.sdk import OrbitClient, RunnerCounts, WorkerRunner
from orbit.sdk.supervise import Timing
from orbit.sdk.testing import FakePlatform

WAIT_S = 25.0
ENDED = frozenset({TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED, TaskState.NEEDS_REVIEW})


def quick(**options: Any) -> WorkerRunner:
    """A runner that dials and asks again soon: a fiftieth of the longest wait that chance could give."""
    return WorkerRunner(timing=Timing(jitter=lambda: 0.02), **options)


@asynccontextmanager
async def running(
    runner: WorkerRunner, client: OrbitClient, *, stop_s: float = 5.0, alone: bool = True
) -> AsyncIterator[asyncio.Task[RunnerCounts]]:
    """Run a runner; on leaving stop it, see `run()` end, the counts add up and no task of the SDK's remain."""
    task = asyncio.create_task(runner.run(client), name="test-run")
    await asyncio.sleep(0)
    try:
        yield task
        await asyncio.wait_for(runner.stop(stop_s), WAIT_S)
        await asyncio.wait_for(task, WAIT_S)
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert whole(runner.counts), runner.counts
    assert not alone or leftovers() == []


@asynccontextmanager
async def at_work(runner: WorkerRunner, *, limits: Limits | None = None, **options: Any) -> AsyncIterator[FakePlatform]:
    """A platform in memory and the runner at work for it."""
    async with FakePlatform(limits=limits) as platform, platform.client() as client:
        async with running(runner, client, **options):
            yield platform
        for connection in platform.connections:
            assert not connection.open


def whole(counts: RunnerCounts) -> bool:
    """Whether every attempt is counted in exactly one place."""
    started = counts.calling + counts.reporting + counts.confirmed + counts.refused + counts.abandoned
    return counts.assigned == counts.waiting + counts.dropped + counts.started and counts.started == started


async def counted(runner: WorkerRunner, condition: Callable[[RunnerCounts], bool]) -> RunnerCounts:
    """Wait for a condition on the runner's counts."""
    try:
        return await asyncio.wait_for(runner.until(condition), WAIT_S)
    except TimeoutError:
        raise AssertionError(f"the counts did not get there: {runner.counts}") from None


async def ended(platform: FakePlatform, *task_ids: str) -> list[TaskState]:
    """Wait until the tasks have ended, or all of them; their states."""
    ids = task_ids or tuple(platform.tasks)
    await platform.until(
        lambda: all(platform.tasks[one].state in ENDED for one in ids),
        f"{[platform.tasks[one].state.value for one in ids]}",
    )
    return [platform.tasks[one].state for one in ids]


def outcomes(platform: FakePlatform, task_id: str) -> list[str | None]:
    """How a task's attempts ended, oldest first."""
    return [held.outcome for held in platform.tasks[task_id].attempts]


def messages(platform: FakePlatform, kind: str) -> Counter[str]:
    """How often each message id of a type was seen."""
    return Counter(seen.message_id for seen in platform.seen if seen.type == kind)


def order(platform: FakePlatform, connection: int) -> list[str]:
    """The types of the frames of one connection, in order."""
    return [seen.type for seen in platform.seen if seen.connection == connection]


def leftovers() -> list[str]:
    """Names of tasks of the SDK that still exist."""
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("orbit-")]

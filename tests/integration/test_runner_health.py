"""A worker that cannot do its work does not look healthy, and says what holds it."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest

from orbit.protocol.errors import ErrorCode
from orbit.protocol.http_v1 import TaskState
from orbit.protocol.limits import Limits
from orbit.sdk import WorkerRunner
from orbit.sdk.supervise import Timing
from orbit.sdk.testing import FakePlatform, Ignore, Refuse
from tests.support.runners import at_work, ended, leftovers, quick, running

BEAT_S = 0.5
LIMITS = Limits(heartbeat_s=BEAT_S)


class Dialling:
    """Waits between dials until the test lets them go on."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.waits: list[float] = []
        self.timing = Timing(sleep=self.sleep, jitter=lambda: 1.0)

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        await self.go_on.wait()


def worker(**options: Any) -> WorkerRunner:
    runner = WorkerRunner(**options) if options else quick()
    runner.handler("h", version="v1", payload_version="v1")(lambda payload: payload)
    return runner


async def until(runner: WorkerRunner, *, healthy: bool) -> None:
    """Wait until the worker's health is this."""
    async with asyncio.timeout(20):
        while runner.healthy is not healthy:
            await asyncio.sleep(0.005)


def part(name: str) -> asyncio.Task[Any]:
    (found,) = [task for task in asyncio.all_tasks() if task.get_name() == f"orbit-runner-{name}"]
    return found


@pytest.mark.parametrize("name", ["assignments", "cancellations", "heartbeat"])
async def test_a_part_that_dies_alone_makes_the_worker_unhealthy_and_the_next_session_heals_it(name: str) -> None:
    dialling = Dialling()
    runner = worker(timing=dialling.timing)
    async with at_work(runner, limits=LIMITS) as platform:
        await platform.until(lambda: platform.saw("worker.capacity") != [])
        await until(runner, healthy=True)
        part(name).cancel()
        async with asyncio.timeout(2 * BEAT_S):
            await until(runner, healthy=False)
        assert runner.health.reasons == (f"the session's part for {name} has ended alone",)
        dialling.go_on.set()
        assert await ended(platform, platform.submit("h")) == [TaskState.SUCCEEDED]
        await until(runner, healthy=True)


async def test_heartbeats_without_an_answer_make_the_worker_unhealthy() -> None:
    runner = worker()
    async with at_work(runner, limits=LIMITS) as platform:
        await platform.until(lambda: platform.saw("worker.capacity") != [])
        await until(runner, healthy=True)
        for _ in range(20):
            platform.misbehave("worker.capacity", Ignore())
        await until(runner, healthy=False)
        (reason,) = runner.health.reasons
        assert reason.startswith("no answer to a heartbeat")
        platform.misdeeds.clear()
        platform.cut()
        assert await ended(platform, platform.submit("h")) == [TaskState.SUCCEEDED]
        await until(runner, healthy=True)


async def test_a_platform_without_its_database_keeps_its_session_and_is_no_sign_of_health() -> None:
    runner = worker()
    async with at_work(runner, limits=LIMITS) as platform:
        await platform.until(lambda: platform.saw("worker.capacity") != [])
        refusals = asyncio.create_task(keep_refusing(platform))
        await until(runner, healthy=False)
        refusals.cancel()
        await asyncio.wait([refusals])
        platform.misdeeds.clear()
        await until(runner, healthy=True)
        assert len(platform.connections) == 1


async def keep_refusing(platform: FakePlatform) -> None:
    while True:
        while len(platform.misdeeds.get("worker.capacity", ())) < 50:
            platform.misbehave("worker.capacity", Refuse(ErrorCode.UNAVAILABLE))
        await asyncio.sleep(0)


async def test_a_worker_that_is_not_welcomed_in_time_is_not_healthy() -> None:
    runner = worker()
    async with FakePlatform(limits=Limits(handshake_s=0.1)) as platform, platform.client() as client:
        platform.down = True
        async with running(runner, client, stop_s=0.1):
            await until(runner, healthy=False)
            assert runner.health.reasons[0].startswith("no welcome for")
            platform.down = False
            await until(runner, healthy=True)


async def test_waits_grow_while_sessions_are_welcomed_and_dropped_at_once() -> None:
    dialling = Dialling()
    dialling.go_on.set()
    runner = worker(timing=dialling.timing)
    async with at_work(runner) as platform:
        for number in range(1, 6):
            await platform.until(lambda number=number: len(platform.saw("worker.capacity")) >= number)  # type: ignore[misc]  # a test's lambda
            platform.cut()
            await platform.until(lambda number=number: len(platform.connections) > number)  # type: ignore[misc]  # a test's lambda
    # The ceiling doubles although each session was welcomed: none of them lasted.
    assert dialling.waits[:5] == [0.2, 0.4, 0.8, 1.6, 3.2]


async def test_a_handler_that_blocks_the_loop_is_named_in_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    runner = quick()

    @runner.handler("report.render", version="v2", payload_version="v1")
    async def blocking(payload: Any) -> None:
        time.sleep(1.6)

    with caplog.at_level(logging.WARNING, "orbit.sdk.runner_lag"):
        async with at_work(runner) as platform:
            task_id = platform.submit("report.render", version="v2")
            # The watch looks twice a second: one look may fall before the handler.
            assert await ended(platform, task_id) == [TaskState.SUCCEEDED]
            async with asyncio.timeout(20):
                while len(caplog.records) < 2:
                    await asyncio.sleep(0.01)
    blocked, goes_on = (record.getMessage() for record in caplog.records)
    assert "blocked for more than 1.0 s by orbit-handler report.render@v2 attempt " in blocked
    assert "test_runner_health.py:" in blocked
    assert goes_on.startswith("the event loop goes on after")
    assert leftovers() == []


async def test_a_worker_that_has_lost_its_platform_says_that_no_welcome_comes() -> None:
    runner = worker()
    async with at_work(runner, limits=Limits(handshake_s=0.1, heartbeat_s=30.0), stop_s=0.1) as platform:
        await platform.until(lambda: platform.saw("worker.capacity") != [])
        platform.down = True
        platform.cut()
        await until(runner, healthy=False)
        (reason,) = runner.health.reasons
        assert reason.startswith("no welcome for")

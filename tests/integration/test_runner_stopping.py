"""The end of a runner: drain, halt, signals, handlers that do not end."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import Any

import pytest

from orbit.protocol.errors import ErrorCode
from orbit.protocol.http_v1 import TaskState
from orbit.sdk import StopReason, TaskContext, WorkerRunner
from orbit.sdk.runner_live import Live
from orbit.sdk.testing import Cut, FakePlatform, Refuse
from tests.support.runners import WAIT_S, at_work, counted, ended, leftovers, quick, running, whole
from tests.support.worker_conversations import assignment


class Gated:
    """A runner whose handlers wait for their gate."""

    def __init__(self, **options: Any) -> None:
        self.runner = quick(**options)
        self.gate = asyncio.Event()
        self.reasons: list[StopReason | None] = []
        self.runner.handler("h", version="v1", payload_version="v1")(self.handle)

    async def handle(self, payload: Any, context: TaskContext) -> str:
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.reasons.append(context.cancelled.reason)
            raise
        return "done"


async def test_a_drain_takes_nothing_more_and_lets_what_runs_end() -> None:
    gated = Gated(concurrency=2)
    async with at_work(gated.runner) as platform:
        task_ids = [platform.submit("h") for _ in range(3)]
        await counted(gated.runner, lambda counts: counts.calling == 2)
        stopping = asyncio.create_task(gated.runner.stop(10.0))
        await platform.until(lambda: platform.saw("worker.capacity")[-1].drain)
        gated.gate.set()
        await asyncio.wait_for(stopping, WAIT_S)
        states = [platform.tasks[one].state.value for one in task_ids]
        assert states == ["SUCCEEDED", "SUCCEEDED", "WAITING"]
    assert gated.runner.closing_line == "worker_drained=true started=2 confirmed=2 running=0"


async def test_handlers_that_go_on_are_told_before_the_end_of_the_drain_and_reported() -> None:
    gated = Gated()
    async with at_work(gated.runner) as platform:
        task_id = platform.submit("h")
        await counted(gated.runner, lambda counts: counts.calling == 1)
        await asyncio.wait_for(gated.runner.stop(2.0), WAIT_S)
        assert platform.tasks[task_id].error_code == "WORKER_STOPPED"
    assert gated.reasons == [StopReason.SHUTDOWN]
    assert gated.runner.closing_line == "worker_drained=true started=1 confirmed=1 running=0"


async def test_a_halt_waits_for_no_handler_and_reports_all() -> None:
    gated = Gated()
    async with at_work(gated.runner) as platform:
        task_ids = [platform.submit("h") for _ in range(4)]
        await counted(gated.runner, lambda counts: counts.calling == 4)
        drain = asyncio.create_task(gated.runner.stop(60.0))
        await platform.until(lambda: platform.saw("worker.capacity")[-1].drain)
        await asyncio.wait_for(gated.runner.halt(), WAIT_S)
        await drain
        assert {platform.tasks[one].error_code for one in task_ids} == {"WORKER_STOPPED"}
    assert gated.reasons == [StopReason.SHUTDOWN] * 4


async def test_a_halt_ends_in_time_where_handlers_and_platform_do_not_answer() -> None:
    runner = quick()
    go_on = threading.Event()

    @runner.handler("h", version="v1", payload_version="v1")
    def stuck(payload: Any) -> None:
        go_on.wait(WAIT_S)

    async with FakePlatform() as platform, platform.client() as client:
        task = asyncio.create_task(runner.run(client))
        await asyncio.sleep(0)
        platform.submit("h")
        await counted(runner, lambda counts: counts.calling == 1)
        platform.down = True
        platform.cut()
        # Three seconds, and at most two for what is cancelled at the very end.
        await asyncio.wait_for(runner.halt(), 3.0 + 2.0 + 2.0)
        await task
        assert runner.closing_line == "worker_drained=false started=1 confirmed=0 running=1"
        assert whole(runner.counts)
        go_on.set()
    assert leftovers() == []


async def test_a_result_whose_report_was_lost_is_reported_in_the_drain() -> None:
    gated = Gated()
    async with at_work(gated.runner) as platform:
        platform.misbehave("task.finish", Cut())
        platform.misbehave("task.finish", Cut())
        task_id = platform.submit("h")
        await counted(gated.runner, lambda counts: counts.calling == 1)
        stopping = asyncio.create_task(gated.runner.stop(10.0))
        await platform.until(lambda: platform.saw("worker.capacity")[-1].drain)
        gated.gate.set()
        await asyncio.wait_for(stopping, WAIT_S)
        assert platform.tasks[task_id].state is TaskState.SUCCEEDED
    assert gated.runner.closing_line == "worker_drained=true started=1 confirmed=1 running=0"


async def test_the_drain_is_declared_again_on_every_connection() -> None:
    gated = Gated()
    async with at_work(gated.runner) as platform:
        platform.submit("h")
        await counted(gated.runner, lambda counts: counts.calling == 1)
        stopping = asyncio.create_task(gated.runner.stop(10.0))
        await platform.until(lambda: platform.saw("worker.capacity")[-1].drain)
        platform.cut()
        await platform.until(lambda: len(platform.connections) == 2 and len(platform.saw("worker.capacity")) == 3)
        assert [one.drain for one in platform.saw("worker.capacity")] == [False, True, True]
        gated.gate.set()
        await asyncio.wait_for(stopping, WAIT_S)


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_drains(which: signal.Signals) -> None:
    gated = Gated()
    async with FakePlatform() as platform, platform.client() as client:
        serving = asyncio.create_task(gated.runner.serve(client))
        await asyncio.sleep(0)
        platform.submit("h")
        await platform.until(lambda: platform.saw("task.start") != [])
        await counted(gated.runner, lambda counts: counts.calling == 1)
        os.kill(os.getpid(), which)
        await platform.until(lambda: platform.saw("worker.capacity")[-1].drain)
        assert gated.runner.counts.calling == 1
        gated.gate.set()
        counts = await asyncio.wait_for(serving, WAIT_S)
        assert (counts.started, counts.confirmed) == (1, 1)
    assert leftovers() == []


async def test_the_second_signal_ends_at_once() -> None:
    gated = Gated()
    async with FakePlatform() as platform, platform.client() as client:
        serving = asyncio.create_task(gated.runner.serve(client))
        await asyncio.sleep(0)
        task_id = platform.submit("h")
        await platform.until(lambda: platform.saw("task.start") != [])
        await counted(gated.runner, lambda counts: counts.calling == 1)
        os.kill(os.getpid(), signal.SIGTERM)
        await platform.until(lambda: platform.saw("worker.capacity")[-1].drain)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(serving, WAIT_S)
        assert platform.tasks[task_id].error_code == "WORKER_STOPPED"
    assert gated.runner.closing_line == "worker_drained=true started=1 confirmed=1 running=0"
    assert leftovers() == []


async def test_what_was_assigned_and_not_started_is_left_to_its_lease() -> None:
    runner = WorkerRunner(concurrency=1)
    gate = asyncio.Event()

    @runner.handler("h", version="v1", payload_version="v1")
    async def handler(payload: Any) -> None:
        await gate.wait()

    async with FakePlatform() as platform, platform.client() as client, running(runner, client):
        first = platform.submit("h", max_attempts=2)
        await counted(runner, lambda counts: counts.calling == 1)
        # The platform ends the first attempt by itself and gives the second: its place is still taken.
        platform.lapse(first)
        platform.submit("h")
        await counted(runner, lambda counts: counts.waiting == 1)
        stopping = asyncio.create_task(runner.stop(10.0))
        await counted(runner, lambda counts: counts.dropped == 1)
        gate.set()
        await asyncio.wait_for(stopping, WAIT_S)
        assert len(platform.saw("task.start")) == 1
    assert runner.closing_line == "worker_drained=true started=1 confirmed=1 running=0"


async def test_a_runner_that_is_stopped_before_it_runs_ends_at_once() -> None:
    gated = Gated()
    async with FakePlatform() as platform, platform.client() as client:
        await gated.runner.stop(5.0)
        await asyncio.wait_for(gated.runner.run(client), WAIT_S)
        platform.submit("h")
        assert platform.saw("task.start") == []
    assert leftovers() == []


async def test_a_halted_runner_does_not_call_what_starts_meanwhile() -> None:
    gated = Gated()
    async with at_work(gated.runner) as platform:
        platform.misbehave("task.start", Cut())
        platform.down = False
        task_id = platform.submit("h")
        await platform.until(lambda: platform.tasks[task_id].state is TaskState.RUNNING)
        await asyncio.wait_for(gated.runner.halt(), WAIT_S)
        assert await ended(platform) == [TaskState.NEEDS_REVIEW]
        assert platform.tasks[task_id].error_code == "HANDLER_NOT_CALLED"
    assert gated.reasons == []


async def test_a_start_that_is_held_back_is_given_up_by_a_drain() -> None:
    gated = Gated()
    async with at_work(gated.runner) as platform:
        limit = asyncio.create_task(keep_limited(platform))
        platform.submit("h")
        await platform.until(lambda: platform.saw("task.start") != [])
        # Its lease would last for half a minute, and the drain for a whole one.
        await asyncio.wait_for(gated.runner.stop(60.0), WAIT_S)
        limit.cancel()
        await asyncio.wait([limit])
    assert gated.runner.closing_line == "worker_drained=true started=0 confirmed=0 running=0"


async def keep_limited(platform: FakePlatform) -> None:
    while True:
        while len(platform.misdeeds.get("task.start", ())) < 50:
            platform.misbehave("task.start", Refuse(ErrorCode.RATE_LIMITED))
        await asyncio.sleep(0)


def test_the_first_reason_to_stop_is_the_one_that_counts() -> None:
    live = Live(assignment().attempt, 0.0, lambda: None)
    live.stop(StopReason.DEADLINE)
    live.stop(StopReason.SHUTDOWN)
    assert live.stopped is StopReason.DEADLINE


async def test_a_runner_that_has_ended_leaves_no_thread_behind() -> None:
    runner = quick()
    runner.handler("h", version="v1", payload_version="v1")(lambda payload: payload)
    others = set(threading.enumerate())
    async with at_work(runner) as platform:
        platform.submit("h")
        await ended(platform)
        assert {thread.name for thread in set(threading.enumerate()) - others} == {
            "orbit-handler-1",
            "orbit-runner-lag",
        }
    async with asyncio.timeout(WAIT_S):
        while set(threading.enumerate()) - others:
            await asyncio.sleep(0.01)

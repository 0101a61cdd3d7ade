"""Answers that are lost, refused or late: the same message until it is settled, and at most one call of the handler."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from orbit.protocol.attempt_v1 import Outcome
from orbit.protocol.errors import ErrorCode
from orbit.protocol.http_v1 import TaskState
from orbit.protocol.limits import Limits
from orbit.sdk import TaskContext, WorkerCancelled, WorkerRunner
from orbit.sdk.testing import Cut, Drop, FakePlatform, Ignore, Misdeed, Refuse
from tests.support.runners import at_work, counted, ended, messages, order, outcomes, quick

# Answers are waited for half a second.
SHORT = Limits(control_s=0.5)


class Calls:
    """A runner whose handler counts its calls, by attempt."""

    def __init__(self, runner: WorkerRunner | None = None) -> None:
        self.runner = runner or quick()
        self.made: Counter[str] = Counter()
        self.gate: asyncio.Event | None = None
        self.runner.handler("h", version="v1", payload_version="v1")(self.handle)

    async def handle(self, payload: Any, context: TaskContext) -> str:
        self.made[context.attempt_id] += 1
        if self.gate is not None:
            await self.gate.wait()
        return "done"


@pytest.mark.parametrize("misdeed", [Drop(), Ignore(), Cut()])
async def test_a_start_whose_answer_is_lost_is_resumed_and_asked_again_with_the_same_id(misdeed: Misdeed) -> None:
    calls = Calls()
    async with at_work(calls.runner, limits=SHORT) as platform:
        platform.misbehave("task.start", misdeed)
        task_id = platform.submit("h")
        assert await ended(platform) == [TaskState.SUCCEEDED]
        assert outcomes(platform, task_id) == ["SUCCEEDED"]
        assert list(messages(platform, "task.start").values()) == [2]
        # Resuming comes before the first capacity, and the start after both.
        assert order(platform, 2)[:4] == ["worker.hello", "worker.resume", "worker.capacity", "task.start"] or order(
            platform, 2
        )[:4] == ["worker.hello", "worker.resume", "task.start", "worker.capacity"]
    assert list(calls.made.values()) == [1]
    assert calls.runner.counts.reconnects == 1


@pytest.mark.parametrize("misdeed", [Drop(), Ignore(), Cut()])
async def test_a_report_whose_answer_is_lost_is_made_again_with_the_same_id(misdeed: Misdeed) -> None:
    calls = Calls()
    async with at_work(calls.runner, limits=SHORT) as platform:
        for _ in range(3):
            platform.misbehave("task.finish", misdeed)
        task_id = platform.submit("h")
        await counted(calls.runner, lambda counts: counts.confirmed == 1)
        assert platform.tasks[task_id].state is TaskState.SUCCEEDED
        assert list(messages(platform, "task.finish").values()) == [4]
        assert len(platform.tasks[task_id].attempts[0].reports) == 1
    assert list(calls.made.values()) == [1]
    assert calls.runner.counts.evidence_only == 0


@pytest.mark.parametrize("code", [ErrorCode.UNAVAILABLE, ErrorCode.INTERNAL])
@pytest.mark.parametrize("request_type", ["task.start", "task.finish"])
async def test_a_platform_that_does_not_know_is_asked_again_on_the_same_connection(
    code: ErrorCode, request_type: str
) -> None:
    calls = Calls()
    async with at_work(calls.runner) as platform:
        for _ in range(5):
            platform.misbehave(request_type, Refuse(code))
        platform.submit("h")
        assert await ended(platform) == [TaskState.SUCCEEDED]
        assert list(messages(platform, request_type).values()) == [6]
    assert list(calls.made.values()) == [1]
    assert calls.runner.counts.reconnects == 0


async def test_a_limited_start_is_asked_again_with_the_same_id_and_calls_nothing() -> None:
    calls = Calls()
    async with at_work(calls.runner) as platform:
        for _ in range(4):
            platform.misbehave("task.start", Refuse(ErrorCode.RATE_LIMITED))
        platform.submit("h")
        await platform.until(lambda: len(platform.saw("task.start")) == 4)
        assert calls.made.total() == 0
        assert await ended(platform) == [TaskState.SUCCEEDED]
        assert list(messages(platform, "task.start").values()) == [5]
    assert list(calls.made.values()) == [1]


async def test_a_limited_start_is_given_up_when_the_lease_is_spent() -> None:
    calls = Calls()
    async with at_work(calls.runner, limits=Limits(task_lease_s=0.6)) as platform:
        limit = asyncio.create_task(keep_limited(platform))
        task_id = platform.submit("h")
        await counted(calls.runner, lambda counts: counts.dropped == 1)
        limit.cancel()
        await asyncio.wait([limit])
        platform.misdeeds.clear()
        assert platform.tasks[task_id].state is TaskState.LEASED
        assert calls.made.total() == 0


async def keep_limited(platform: FakePlatform) -> None:
    while True:
        while len(platform.misdeeds.get("task.start", ())) < 50:
            platform.misbehave("task.start", Refuse(ErrorCode.RATE_LIMITED))
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    "code", [ErrorCode.STATE_CONFLICT, ErrorCode.STALE_EPOCH, ErrorCode.INVALID_PROOF, ErrorCode.NOT_FOUND]
)
async def test_a_refused_start_calls_nothing(code: ErrorCode) -> None:
    calls = Calls()
    async with at_work(calls.runner) as platform:
        platform.misbehave("task.start", Refuse(code))
        platform.submit("h")
        await counted(calls.runner, lambda counts: counts.dropped == 1)
        assert len(platform.saw("task.start")) == 1
    assert calls.made.total() == 0
    assert calls.runner.closing_line == "worker_drained=true started=0 confirmed=0 running=0"


async def test_a_start_that_was_recorded_and_confirmed_only_after_its_lease_is_reported_as_not_called() -> None:
    calls = Calls()
    async with at_work(calls.runner) as platform:
        platform.misbehave("task.start", Drop())
        task_id = platform.submit("h")
        await platform.until(lambda: platform.tasks[task_id].state is TaskState.RUNNING)
        platform.lapse(task_id)
        platform.cut()
        await counted(calls.runner, lambda counts: counts.confirmed == 1)
        (held,) = platform.tasks[task_id].attempts
        assert held.outcome == "LEASE_EXPIRED"
        assert [(one.outcome, one.error_code) for one in held.reports] == [(Outcome.UNKNOWN, "HANDLER_NOT_CALLED")]
    assert calls.made.total() == 0
    assert calls.runner.counts.evidence_only == 1


async def test_a_start_that_was_never_recorded_is_dropped_after_its_lease() -> None:
    calls = Calls()
    async with at_work(calls.runner, limits=SHORT) as platform:
        platform.misbehave("task.start", Ignore())
        task_id = platform.submit("h", max_attempts=1)
        await platform.until(lambda: len(platform.saw("task.start")) == 1)
        platform.lapse(task_id)
        await counted(calls.runner, lambda counts: counts.dropped == 1)
        assert outcomes(platform, task_id) == ["UNSTARTED"]
    assert calls.made.total() == 0


async def test_running_attempts_are_resumed_before_the_capacity_and_not_called_again() -> None:
    calls = Calls()
    calls.gate = asyncio.Event()
    async with at_work(calls.runner) as platform:
        for _ in range(4):
            platform.submit("h")
        await counted(calls.runner, lambda counts: counts.calling == 4)
        for number in (2, 3):
            platform.cut()
            await platform.until(lambda number=number: order(platform, number)[5:] != [])  # type: ignore[misc]  # a test's lambda
            assert order(platform, number)[:6] == ["worker.hello", *["worker.resume"] * 4, "worker.capacity"]
        calls.gate.set()
        assert set(await ended(platform)) == {TaskState.SUCCEEDED}
    assert list(calls.made.values()) == [1, 1, 1, 1]


async def test_more_attempts_than_requests_may_be_in_flight_are_resumed() -> None:
    calls = Calls(quick(concurrency=60))
    calls.gate = asyncio.Event()
    async with at_work(calls.runner, limits=Limits(control_in_flight=8)) as platform:
        for _ in range(60):
            platform.submit("h")
        await counted(calls.runner, lambda counts: counts.calling == 60)
        platform.cut()
        await platform.until(lambda: "worker.capacity" in order(platform, 2))
        assert order(platform, 2).count("worker.resume") == 60
        calls.gate.set()
        assert set(await ended(platform)) == {TaskState.SUCCEEDED}
    assert set(calls.made.values()) == {1}


async def test_results_wait_for_the_next_connection_and_count_once() -> None:
    calls = Calls()
    calls.gate = asyncio.Event()
    async with at_work(calls.runner) as platform:
        task_ids = [platform.submit("h") for _ in range(4)]
        await counted(calls.runner, lambda counts: counts.calling == 4)
        platform.down = True
        platform.cut()
        calls.gate.set()
        await counted(calls.runner, lambda counts: counts.reporting == 4)
        platform.down = False
        assert set(await ended(platform, *task_ids)) == {TaskState.SUCCEEDED}
    assert calls.runner.closing_line == "worker_drained=true started=4 confirmed=4 running=0"


async def test_a_report_that_the_platform_cannot_take_is_replaced_by_unknown() -> None:
    calls = Calls()
    async with at_work(calls.runner) as platform:
        platform.misbehave("task.finish", Refuse(ErrorCode.INVALID_ARGUMENT))
        task_id = platform.submit("h")
        assert await ended(platform) == [TaskState.NEEDS_REVIEW]
        assert platform.tasks[task_id].error_code == "INVALID_RESULT"
        assert len(messages(platform, "task.finish")) == 2
    assert calls.runner.counts.confirmed == 1


async def test_a_report_that_is_refused_for_good_is_counted_and_the_worker_goes_on() -> None:
    calls = Calls()
    async with at_work(calls.runner) as platform:
        platform.misbehave("task.finish", Refuse(ErrorCode.INVALID_ARGUMENT))
        platform.misbehave("task.finish", Refuse(ErrorCode.INVALID_ARGUMENT))
        platform.submit("h")
        await counted(calls.runner, lambda counts: counts.refused == 1)
        assert await ended(platform, platform.submit("h")) == [TaskState.SUCCEEDED]
    assert calls.runner.closing_line == "worker_drained=false started=2 confirmed=1 running=0"


async def test_a_cancelled_that_nobody_asked_for_is_unknown() -> None:
    runner = quick()

    @runner.handler("h", version="v1", payload_version="v1")
    async def handler(payload: Any) -> None:
        raise WorkerCancelled

    async with at_work(runner) as platform:
        task_id = platform.submit("h")
        assert await ended(platform) == [TaskState.NEEDS_REVIEW]
        assert platform.tasks[task_id].error_code == "CANCELLED_UNASKED"
        assert len(platform.saw("task.finish")) == 1


async def test_a_fenced_session_is_followed_by_the_next_one() -> None:
    calls = Calls()
    async with at_work(calls.runner) as platform:
        platform.misbehave("task.start", Refuse(ErrorCode.SESSION_FENCED))
        platform.submit("h")
        assert await ended(platform) == [TaskState.SUCCEEDED]
        assert len(messages(platform, "task.start")) == 1
    assert list(calls.made.values()) == [1]
    assert calls.runner.counts.reconnects == 1


async def test_reports_that_wait_for_their_answers_hold_back_new_work() -> None:
    """A place is free again when its handler has ended, so unanswered reports could pile up without bound."""
    calls = Calls(quick(concurrency=2))
    async with at_work(calls.runner) as platform:
        for _ in range(3):
            platform.misbehave("task.finish", Drop())
            platform.submit("h")
        await platform.until(lambda: [one.capacity for one in platform.saw("worker.capacity")] == [2, 0])
        assert calls.runner.counts.reporting == 3
        waiting = platform.submit("h")
        await asyncio.sleep(0)
        assert platform.tasks[waiting].attempts == []
        platform.cut()
        assert set(await ended(platform)) == {TaskState.SUCCEEDED}
    assert set(calls.made.values()) == {1}
    assert calls.runner.closing_line == "worker_drained=true started=4 confirmed=4 running=0"

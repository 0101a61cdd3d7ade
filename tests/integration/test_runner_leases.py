"""Deadlines, leases and cancel requests: what a handler is told, what is reported, and what it says afterwards."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import pytest

from orbit.protocol.attempt_v1 import Outcome
from orbit.protocol.errors import ErrorCode
from orbit.protocol.http_v1 import RecoverySafety, TaskState
from orbit.protocol.limits import Limits
from orbit.sdk import StopReason, TaskContext, WorkerCancelled, WorkerFailure
from orbit.sdk.testing import Cut, Drop, Refuse
from tests.support.runners import WAIT_S, at_work, counted, ended, messages, outcomes, quick

# A worker with these stops two seconds before the platform's time is up, so that a busy machine makes nothing too late.
AMPLE = Limits(local_margin_s=2.0)
# ... and renews after a third of a second.
SHORT = Limits(task_lease_s=3.0, local_margin_s=2.0)


async def test_an_async_handler_is_cancelled_at_the_end_of_its_time() -> None:
    runner = quick()
    ends: list[tuple[bool, StopReason | None]] = []

    @runner.handler("h", version="v1", payload_version="v1")
    async def handler(payload: Any, context: TaskContext) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ends.append((time.monotonic() >= context.deadline, context.cancelled.reason))

    async with at_work(runner, limits=AMPLE) as platform:
        task_id = platform.submit("h", attempt_timeout_ms=2_400)
        assert await ended(platform) == [TaskState.NEEDS_REVIEW]
        assert outcomes(platform, task_id) == ["UNKNOWN"]
        assert platform.tasks[task_id].error_code == "EXECUTION_DEADLINE"
    assert ends == [(True, StopReason.DEADLINE)]
    # The report came within the safety margin, so that it counted.
    assert runner.counts.evidence_only == 0


async def test_a_sync_handler_is_told_and_its_late_result_is_evidence() -> None:
    runner = quick()
    go_on = threading.Event()

    @runner.handler("h", version="v1", payload_version="v1")
    def handler(payload: Any, context: TaskContext) -> str:
        assert context.cancelled.wait(WAIT_S)
        assert context.cancelled.reason is StopReason.DEADLINE
        assert go_on.wait(WAIT_S)
        return "late"

    async with at_work(runner, limits=AMPLE) as platform:
        task_id = platform.submit("h", attempt_timeout_ms=2_400)
        assert await ended(platform) == [TaskState.NEEDS_REVIEW]
        assert runner.counts.running == 1
        go_on.set()
        (held,) = platform.tasks[task_id].attempts
        await platform.until(lambda: len(held.reports) == 2)
        first, second = held.reports
        assert (first.outcome, first.error_code) == (Outcome.UNKNOWN, "EXECUTION_DEADLINE")
        assert (second.outcome, second.error_code) == (Outcome.UNKNOWN, "EXECUTION_DEADLINE")
        assert "late" not in json.loads(first.result or "")
        assert json.loads(second.result or "")["late"] == "SUCCEEDED"
        assert json.loads(second.result or "")["late_result"] == "late"
    assert runner.closing_line == "worker_drained=true started=1 confirmed=1 running=0"


async def test_a_handler_that_never_returns_is_reported_and_keeps_its_place() -> None:
    runner = quick(concurrency=2)
    go_on = threading.Event()

    @runner.handler("stuck", version="v1", payload_version="v1")
    def stuck(payload: Any) -> None:
        go_on.wait(WAIT_S)

    runner.handler("h", version="v1", payload_version="v1")(lambda payload: payload)
    async with at_work(runner, limits=AMPLE) as platform:
        task_id = platform.submit("stuck", attempt_timeout_ms=2_400)
        assert await ended(platform, task_id) == [TaskState.NEEDS_REVIEW]
        await platform.until(lambda: [one.capacity for one in platform.saw("worker.capacity")] == [2, 1])
        others = [platform.submit("h") for _ in range(3)]
        assert set(await ended(platform, *others)) == {TaskState.SUCCEEDED}
        go_on.set()
        await platform.until(lambda: [one.capacity for one in platform.saw("worker.capacity")] == [2, 1, 2])


async def test_an_async_handler_that_does_not_let_itself_be_cancelled_is_reported_all_the_same() -> None:
    runner = quick()
    go_on = asyncio.Event()

    @runner.handler("h", version="v1", payload_version="v1")
    async def handler(payload: Any) -> None:
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                continue

    async with at_work(runner, limits=AMPLE) as platform:
        task_id = platform.submit("h", attempt_timeout_ms=2_400)
        assert await ended(platform) == [TaskState.NEEDS_REVIEW]
        assert platform.tasks[task_id].error_code == "EXECUTION_DEADLINE"
        go_on.set()
        await counted(runner, lambda counts: counts.running == 0)


async def test_a_lease_that_cannot_be_renewed_stops_the_handler_before_its_end() -> None:
    runner = quick()
    stopped: list[tuple[float, StopReason | None]] = []

    @runner.handler("h", version="v1", payload_version="v1")
    async def handler(payload: Any, context: TaskContext) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.append((time.monotonic(), context.cancelled.reason))

    async with at_work(runner, limits=SHORT) as platform:
        task_id = platform.submit("h")
        await counted(runner, lambda counts: counts.calling == 1)
        platform.down = True
        platform.cut()
        (held,) = platform.tasks[task_id].attempts
        lease_over = time.monotonic() + (held.lease_until - platform.now).total_seconds()
        await counted(runner, lambda counts: counts.reporting == 1)
        platform.down = False
        await counted(runner, lambda counts: counts.confirmed == 1)
    ((when, reason),) = stopped
    assert reason is StopReason.LEASE_LOST
    assert when < lease_over
    assert held.reports[0].error_code == "LEASE_LOST"


async def test_a_lease_that_somebody_else_has_stops_the_handler_at_once() -> None:
    runner = quick()
    reasons: list[StopReason | None] = []

    @runner.handler("h", version="v1", payload_version="v1")
    async def handler(payload: Any, context: TaskContext) -> str:
        if context.attempt_number > 1:
            return "second"
        try:
            await asyncio.sleep(60)
        finally:
            reasons.append(context.cancelled.reason)
        return "first"

    async with at_work(runner) as platform:
        task_id = platform.submit("h", max_attempts=2, recovery_safety=RecoverySafety.IDEMPOTENT)
        await counted(runner, lambda counts: counts.calling == 1)
        platform.cut()
        platform.lapse(task_id)
        assert await ended(platform) == [TaskState.SUCCEEDED]
        await counted(runner, lambda counts: counts.confirmed == 2)
        first, second = platform.tasks[task_id].attempts
        assert first.reports[0].error_code == "LEASE_LOST"
        assert (first.outcome, second.outcome) == ("LEASE_EXPIRED", "SUCCEEDED")
        # It was the resumption that told, long before a renewal was due.
        assert platform.saw("task.renew") == []
    assert reasons == [StopReason.LEASE_LOST]
    assert runner.counts.evidence_only == 1


async def test_a_refused_renewal_stops_the_handler() -> None:
    runner = quick()

    @runner.handler("h", version="v1", payload_version="v1")
    async def handler(payload: Any) -> None:
        await asyncio.sleep(60)

    async with at_work(runner, limits=SHORT) as platform:
        platform.misbehave("task.renew", Refuse(ErrorCode.STATE_CONFLICT))
        task_id = platform.submit("h")
        await counted(runner, lambda counts: counts.confirmed == 1)
        assert platform.tasks[task_id].error_code == "LEASE_LOST"


async def test_renewals_go_on_through_trouble_each_under_an_id_of_its_own() -> None:
    runner = quick()
    gate = asyncio.Event()

    @runner.handler("h", version="v1", payload_version="v1")
    async def handler(payload: Any) -> None:
        await gate.wait()

    async with at_work(runner, limits=SHORT) as platform:
        for misdeed in (Refuse(ErrorCode.UNAVAILABLE), Cut(), Refuse(ErrorCode.INTERNAL)):
            platform.misbehave("task.renew", misdeed)
        platform.submit("h")
        await platform.until(lambda: len(platform.saw("task.renew")) >= 7)
        gate.set()
        assert await ended(platform) == [TaskState.SUCCEEDED]
        assert set(messages(platform, "task.renew").values()) == {1}


async def test_a_lease_that_is_bounded_by_the_attempts_time_is_not_renewed_for_ever() -> None:
    runner = quick()

    @runner.handler("h", version="v1", payload_version="v1")
    async def handler(payload: Any) -> None:
        await asyncio.sleep(60)

    async with at_work(runner) as platform:
        platform.submit("h", attempt_timeout_ms=900)
        assert await ended(platform) == [TaskState.NEEDS_REVIEW]
        # One shows what holds, one that nothing more is to be had.
        assert len(platform.saw("task.renew")) <= 2


@pytest.mark.parametrize(
    ("word", "state"),
    [("cancelled", "CANCELLED"), ("failure", "FAILED"), ("value", "SUCCEEDED"), ("pass", "NEEDS_REVIEW")],
)
async def test_a_cancel_request_reaches_the_handler_whose_word_counts(word: str, state: str) -> None:
    runner = quick()

    @runner.handler("h", version="v1", payload_version="v1")
    async def handler(payload: Any, context: TaskContext) -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            assert context.cancelled.requested
            if word == "cancelled":
                raise WorkerCancelled("ROLLED_BACK") from None
            if word == "failure":
                raise WorkerFailure("BROKEN", retryable=True) from None
            if word == "pass":
                raise
        return "done all the same"

    async with at_work(runner) as platform:
        task_id = platform.submit("h", max_attempts=3, recovery_safety=RecoverySafety.IDEMPOTENT)
        await counted(runner, lambda counts: counts.calling == 1)
        platform.cancel(task_id)
        assert [one.value for one in await ended(platform)] == [state]
        assert len(platform.tasks[task_id].attempts) == 1
        if word == "pass":
            assert platform.tasks[task_id].error_code == "CANCELLED_UNCONFIRMED"
        if word == "cancelled":
            assert platform.tasks[task_id].error_code == "ROLLED_BACK"


async def test_a_sync_handler_reads_the_cancel_request_from_its_context() -> None:
    runner = quick()

    @runner.handler("h", version="v1", payload_version="v1")
    def handler(payload: Any, context: TaskContext) -> None:
        assert context.cancelled.wait(WAIT_S)
        assert context.cancelled.reason is StopReason.CANCEL_REQUESTED
        raise WorkerCancelled

    async with at_work(runner) as platform:
        task_id = platform.submit("h")
        await counted(runner, lambda counts: counts.calling == 1)
        platform.cancel(task_id)
        assert await ended(platform) == [TaskState.CANCELLED]


async def test_a_cancel_request_stops_exactly_its_own_attempt() -> None:
    runner = quick()
    gate = asyncio.Event()

    @runner.handler("h", version="v1", payload_version="v1")
    async def handler(payload: Any) -> None:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            raise WorkerCancelled from None

    async with at_work(runner) as platform:
        first, second, third = (platform.submit("h") for _ in range(3))
        await counted(runner, lambda counts: counts.calling == 3)
        platform.cancel(second)
        assert await ended(platform, second) == [TaskState.CANCELLED]
        assert runner.counts.calling == 2
        gate.set()
        assert await ended(platform, first, third) == [TaskState.SUCCEEDED, TaskState.SUCCEEDED]


async def test_a_cancel_request_that_was_missed_is_seen_when_the_attempt_is_resumed() -> None:
    runner = quick()

    @runner.handler("h", version="v1", payload_version="v1")
    async def handler(payload: Any) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise WorkerCancelled from None

    async with at_work(runner) as platform:
        task_id = platform.submit("h")
        await counted(runner, lambda counts: counts.calling == 1)
        platform.down = True
        platform.cut()
        platform.cancel(task_id)
        platform.down = False
        assert await ended(platform) == [TaskState.CANCELLED]


async def test_a_cancel_request_before_the_start_calls_nothing() -> None:
    runner = quick()
    calls: list[Any] = []
    runner.handler("h", version="v1", payload_version="v1")(calls.append)
    async with at_work(runner) as platform:
        for _ in range(5):
            platform.misbehave("task.start", Refuse(ErrorCode.RATE_LIMITED))
        task_id = platform.submit("h")
        await platform.until(lambda: len(platform.saw("task.start")) >= 1)
        platform.cancel(task_id)
        await counted(runner, lambda counts: counts.dropped == 1)
        assert platform.tasks[task_id].state is TaskState.CANCELLED
    assert calls == []


async def test_a_start_that_was_cancelled_before_it_was_known_is_reported_as_cancelled() -> None:
    runner = quick()
    calls: list[Any] = []
    runner.handler("h", version="v1", payload_version="v1")(calls.append)
    async with at_work(runner) as platform:
        platform.misbehave("task.start", Cut())
        task_id = platform.submit("h")
        await platform.until(lambda: platform.tasks[task_id].state is TaskState.RUNNING)
        platform.cancel(task_id)
        assert await ended(platform) == [TaskState.CANCELLED]
        assert platform.tasks[task_id].error_code == "CANCELLED_UNCALLED"
    assert calls == []


async def test_an_attempt_that_the_platform_does_not_know_any_more_is_stopped() -> None:
    runner = quick()
    reasons: list[StopReason | None] = []

    @runner.handler("h", version="v1", payload_version="v1")
    async def handler(payload: Any, context: TaskContext) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            reasons.append(context.cancelled.reason)

    async with at_work(runner) as platform:
        platform.submit("h")
        await counted(runner, lambda counts: counts.calling == 1)
        platform.misbehave("worker.resume", Refuse(ErrorCode.UNAVAILABLE))
        platform.misbehave("worker.resume", Refuse(ErrorCode.NOT_FOUND))
        platform.cut()
        await counted(runner, lambda counts: counts.confirmed == 1)
        assert len(platform.saw("worker.resume")) == 2
    assert reasons == [StopReason.LEASE_LOST]


async def test_a_renewal_under_way_is_not_cancelled_when_its_attempt_ends() -> None:
    """Cancelling an operation after it was sent would end the connection under everybody else."""
    runner = quick()
    gate = asyncio.Event()

    @runner.handler("h", version="v1", payload_version="v1")
    async def handler(payload: Any) -> None:
        await gate.wait()

    async with at_work(runner, limits=Limits(task_lease_s=1.0, control_s=3.0)) as platform:
        platform.misbehave("task.renew", Drop())
        platform.submit("h")
        await platform.until(lambda: len(platform.saw("task.renew")) == 1)
        gate.set()
        assert set(await ended(platform)) == {TaskState.SUCCEEDED}
        assert await ended(platform, platform.submit("h")) == [TaskState.SUCCEEDED]
        assert len(platform.connections) == 1


async def test_an_attempt_that_is_assigned_twice_is_run_once() -> None:
    runner = quick()
    calls: list[Any] = []
    gate = asyncio.Event()

    @runner.handler("h", version="v1", payload_version="v1")
    async def handler(payload: Any) -> None:
        calls.append(payload)
        await gate.wait()

    async with at_work(runner) as platform:
        await platform.until(lambda: len(platform.saw("worker.capacity")) == 1)
        connection = platform.connections[0]
        send = connection.send
        connection.send = lambda data: (send(data), send(data)) if b"task.assign" in data else send(data)
        platform.submit("h")
        await counted(runner, lambda counts: counts.assigned == 2)
        gate.set()
        assert await ended(platform) == [TaskState.SUCCEEDED]
        await counted(runner, lambda counts: counts.confirmed == 1)
        assert len(platform.saw("task.start")) == 1
    assert len(calls) == 1
    assert runner.counts.dropped == 1


async def test_a_handler_that_ended_late_and_was_seen_later_still_is_late() -> None:
    runner = quick()

    @runner.handler("h", version="v1", payload_version="v1")
    async def blocking(payload: Any, context: TaskContext) -> str:
        time.sleep(context.remaining_s + 0.01)
        return "late"

    async with at_work(runner, limits=AMPLE) as platform:
        task_id = platform.submit("h", attempt_timeout_ms=2_400)
        await counted(runner, lambda counts: counts.confirmed == 1)
        (report,) = platform.tasks[task_id].attempts[0].reports
        assert (report.outcome, report.error_code) == (Outcome.UNKNOWN, "EXECUTION_DEADLINE")
        assert json.loads(report.result or "")["late_result"] == "late"

"""A runner at work: calls, contexts, words, retries, and what handlers may do to it."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest

from orbit.protocol.errors import ErrorCode
from orbit.protocol.http_v1 import RecoverySafety, TaskState
from orbit.sdk import InvalidConfiguration, OrbitError, TaskContext, WorkerFailure, WorkerRunner
from orbit.sdk.testing import FakePlatform, Refuse
from tests.support.runners import at_work, counted, ended, leftovers, order, outcomes, quick, whole


@dataclass
class Text:
    text: str


async def test_a_sync_handler_runs_in_a_thread_and_its_value_is_the_result() -> None:
    runner = quick()
    threads: list[str] = []

    @runner.handler("text.normalize", version="v1", payload_version="v1")
    def normalize(payload: Text) -> Text:
        threads.append(threading.current_thread().name)
        return Text(payload.text.strip().upper())

    async with at_work(runner) as platform:
        task_id = platform.submit("text.normalize", {"text": " a "})
        assert await ended(platform) == [TaskState.SUCCEEDED]
        assert platform.tasks[task_id].result == {"text": "A"}
    assert threads == ["orbit-handler-1"]
    assert runner.closing_line == "worker_drained=true started=1 confirmed=1 running=0"


async def test_an_async_handler_runs_in_the_loop_and_gets_its_context() -> None:
    runner = quick()
    contexts: list[TaskContext] = []

    @runner.handler("text.normalize", version="v1", payload_version="v1")
    async def normalize(payload: Any, context: TaskContext) -> None:
        assert threading.current_thread() is threading.main_thread()
        contexts.append(context)

    async with at_work(runner) as platform:
        before = time.monotonic()
        task_id = platform.submit("text.normalize", attempt_timeout_ms=10_000)
        assert await ended(platform) == [TaskState.SUCCEEDED]
        assert platform.tasks[task_id].result is None
    (context,) = contexts
    assert context.task_id == task_id
    assert context.attempt_id == platform.tasks[task_id].attempts[0].attempt.attempt_id
    assert (context.attempt_number, context.max_attempts, context.effect_uncertain) == (1, 1, False)
    assert not context.cancelled.is_set()
    # Ten seconds from the start, less the margin of 250 ms.
    assert before + 9.7 < context.deadline < time.monotonic() + 9.75


async def test_the_conversation_is_hello_capacity_start_finish() -> None:
    runner = quick(concurrency=3)
    runner.handler("h", version="v1", payload_version="v1")(lambda payload: payload)
    async with at_work(runner) as platform:
        platform.submit("h", 1)
        await ended(platform)
        assert order(platform, 1) == ["worker.hello", "worker.capacity", "task.start", "task.finish"]
        hello = platform.saw("worker.hello")[0]
        assert (hello.capacity, hello.cancellation_notifications, hello.concurrency_keys) == (3, True, True)
        assert [(one.capacity, one.drain) for one in platform.saw("worker.capacity")] == [(3, False)]
    assert [(one.capacity, one.drain) for one in platform.saw("worker.capacity")] == [(3, False), (0, True)]


async def test_a_failure_that_may_be_tried_again_is_and_the_second_attempt_says_so() -> None:
    runner = quick()
    numbers: list[int] = []

    @runner.handler("h", version="v1", payload_version="v1")
    def handler(payload: Any, context: TaskContext) -> str:
        numbers.append(context.attempt_number)
        if context.attempt_number == 1:
            raise WorkerFailure("TEMPORARY_REJECTION", retryable=True, details={"ref": "x"})
        return "done"

    async with at_work(runner) as platform:
        task_id = platform.submit("h", max_attempts=3)
        assert await ended(platform) == [TaskState.SUCCEEDED]
        first, second = platform.tasks[task_id].attempts
        assert (first.reports[0].error_code, first.reports[0].retryable) == ("TEMPORARY_REJECTION", True)
        assert first.reports[0].result == '{"ref":"x"}'
        assert second.reports[0].result == '"done"'
    assert numbers == [1, 2]
    assert runner.closing_line == "worker_drained=true started=2 confirmed=2 running=0"


async def test_a_failure_is_final_unless_it_says_otherwise() -> None:
    runner = quick()

    @runner.handler("h", version="v1", payload_version="v1")
    async def handler(payload: Any) -> None:
        raise WorkerFailure("BROKEN")

    async with at_work(runner) as platform:
        task_id = platform.submit("h", max_attempts=3)
        assert await ended(platform) == [TaskState.FAILED]
        assert outcomes(platform, task_id) == ["FAILED"]


def raise_in_thread(payload: str) -> Any:
    raise {
        "exit": SystemExit(1),
        "interrupt": KeyboardInterrupt(),
        "value": ValueError("the payload is secret"),
        "memory": MemoryError(),
        "cancelled": asyncio.CancelledError(),
        "generator": GeneratorExit(),
    }[payload]


async def raise_in_loop(payload: str) -> Any:
    raise_in_thread(payload)


@pytest.mark.parametrize("handler", [raise_in_thread, raise_in_loop])
@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("exit", "HANDLER_EXITED"),
        ("interrupt", "HANDLER_EXITED"),
        ("value", "HANDLER_RAISED"),
        ("memory", "HANDLER_RAISED"),
        ("cancelled", "HANDLER_CANCELLED"),
        ("generator", "HANDLER_EXITED"),
    ],
)
async def test_whatever_a_handler_raises_the_runner_goes_on_and_says_unknown(
    handler: Any, what: str, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    runner = quick()
    runner.handler("h", version="v1", payload_version="v1")(handler)
    runner.handler("after", version="v1", payload_version="v1")(lambda payload: payload)
    async with at_work(runner) as platform:
        task_id = platform.submit("h", what)
        assert await ended(platform) == [TaskState.NEEDS_REVIEW]
        (report,) = platform.tasks[task_id].attempts[0].reports
        assert (report.outcome.value, report.error_code) == ("UNKNOWN", code)
        assert "secret" not in str(report.result)
        assert await ended(platform, platform.submit("after", 1)) == [TaskState.SUCCEEDED]
    assert "secret" not in caplog.text


async def test_a_handler_that_cancels_its_own_task_is_unknown() -> None:
    runner = quick()

    @runner.handler("h", version="v1", payload_version="v1")
    async def handler(payload: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(60)

    async with at_work(runner) as platform:
        task_id = platform.submit("h")
        assert await ended(platform) == [TaskState.NEEDS_REVIEW]
        assert platform.tasks[task_id].error_code == "HANDLER_CANCELLED"


@pytest.mark.parametrize(
    ("value", "code"),
    [(object(), "INVALID_RESULT"), (float("nan"), "INVALID_RESULT"), ("x" * 300_000, "RESULT_TOO_LARGE")],
)
async def test_a_result_that_is_none_is_unknown_and_was_not_sent(value: Any, code: str) -> None:
    runner = quick()
    runner.handler("h", version="v1", payload_version="v1")(lambda payload: value)
    async with at_work(runner) as platform:
        task_id = platform.submit("h")
        assert await ended(platform) == [TaskState.NEEDS_REVIEW]
        assert platform.tasks[task_id].error_code == code
        assert len(platform.saw("task.finish")) == 1


async def test_a_payload_of_another_type_is_unknown_and_the_handler_is_not_called() -> None:
    runner = quick()
    calls: list[Any] = []

    @runner.handler("h", version="v1", payload_version="v1")
    def handler(payload: Text) -> None:
        calls.append(payload)

    async with at_work(runner) as platform:
        task_id = platform.submit("h", {"text": 4711})
        assert await ended(platform) == [TaskState.NEEDS_REVIEW]
        (report,) = platform.tasks[task_id].attempts[0].reports
        assert report.error_code == "INVALID_PAYLOAD"
        assert '"at":"$.text"' in str(report.result)
        assert "4711" not in str(report.result)
    assert calls == []


async def test_at_most_so_many_handlers_run_at_a_time() -> None:
    runner = quick(concurrency=3)
    now, most, gate = 0, 0, asyncio.Event()

    @runner.handler("h", version="v1", payload_version="v1")
    async def handler(payload: Any) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await gate.wait()
        now -= 1

    async with at_work(runner) as platform:
        for _ in range(10):
            platform.submit("h")
        await counted(runner, lambda counts: counts.calling == 3)
        assert runner.counts.assigned == 3
        gate.set()
        assert set(await ended(platform)) == {TaskState.SUCCEEDED}
    assert most == 3


async def test_an_idempotent_task_is_tried_again_after_unknown_and_told_that_an_effect_is_open() -> None:
    runner = quick()
    uncertain: list[bool] = []

    @runner.handler("h", version="v1", payload_version="v1")
    def handler(payload: Any, context: TaskContext) -> None:
        uncertain.append(context.effect_uncertain)
        if len(uncertain) == 1:
            raise ValueError

    async with at_work(runner) as platform:
        task_id = platform.submit("h", max_attempts=2, recovery_safety=RecoverySafety.IDEMPOTENT)
        assert await ended(platform) == [TaskState.SUCCEEDED]
        assert outcomes(platform, task_id) == ["UNKNOWN", "SUCCEEDED"]
    assert uncertain == [False, True]


async def test_a_runner_without_handlers_or_that_ran_before_does_not_run() -> None:
    runner = quick()
    async with at_work(other := quick_with_handler()) as platform:
        with pytest.raises(InvalidConfiguration, match="register a handler"):
            await runner.run(platform.client())
        with pytest.raises(RuntimeError, match="runs once"):
            await other.run(platform.client())
        with pytest.raises(InvalidConfiguration, match="before the runner is started"):
            other.handler("late", version="v1", payload_version="v1")(lambda payload: payload)


def quick_with_handler() -> WorkerRunner:
    runner = quick()
    runner.handler("h", version="v1", payload_version="v1")(lambda payload: payload)
    return runner


async def test_cancelling_a_runner_leaves_nothing_behind() -> None:
    runner = quick()
    told: list[Any] = []

    @runner.handler("h", version="v1", payload_version="v1")
    async def handler(payload: Any, context: TaskContext) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            told.append(context.cancelled.reason)

    async with FakePlatform() as platform, platform.client() as client:
        task = asyncio.create_task(runner.run(client))
        await asyncio.sleep(0)
        platform.submit("h")
        platform.submit("h")
        await counted(runner, lambda counts: counts.calling == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert told == ["SHUTDOWN", "SHUTDOWN"]
        assert runner.counts.abandoned == 2
        assert whole(runner.counts)
    assert leftovers() == []
    assert runner.health.reasons == ("it has ended",)
    assert runner.closing_line.startswith("worker_drained=false")


async def test_a_platform_that_refuses_for_good_ends_the_runner_with_its_word() -> None:
    runner = quick_with_handler()
    async with FakePlatform() as platform, platform.client() as client:
        platform.misbehave("worker.hello", Refuse(ErrorCode.PERMISSION_DENIED))
        with pytest.raises(OrbitError, match="PERMISSION_DENIED"):
            await asyncio.wait_for(runner.run(client), 20)
    assert leftovers() == []

"""A runner on a real platform: MySQL, HTTP, WebSocket."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Raw

from orbit.protocol.history_v1 import AttemptRecord
from orbit.protocol.http_v1 import QueueLimits, RecoverySafety, RetryPolicy, Task, TaskState
from orbit.protocol.limits import Limits
from orbit.protocol.values import Secret, new_id
from orbit.sdk import Credentials, OrbitClient, TaskContext, WorkerCancelled, WorkerFailure
from tests.support.clients import task
from tests.support.everything import everything_logged
from tests.support.platform import fresh_credentials, running_node
from tests.support.runners import counted, quick, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orbit.mysql.dsn import DSN

# A lease of two seconds on both sides.
SHORT = Limits(task_lease_s=2.0)
WAIT_S = 30.0
SECRET = "hunter2-4711"


@asynccontextmanager
async def platform(dsn: DSN, limits: Limits | None = None) -> AsyncIterator[OrbitClient]:
    """A node of this test's own, and a client of a queue of its own."""
    async with running_node(dsn, limits=limits) as node:
        content = await fresh_credentials(dsn)
        credentials = Credentials(queue_id=content["queue_id"], token=Secret(content["token"]))
        async with OrbitClient(node.base_url, credentials, limits=limits) as client:
            yield client


async def submit(client: OrbitClient, payload: bytes = b"{}", **given: Any) -> str:
    return (await client.submit_task(new_id(), task(client, payload=Raw(payload), **given))).task.task_id


async def state(client: OrbitClient, task_id: str, *wanted: TaskState) -> Task:
    """Wait until the task is in one of these states."""
    async with asyncio.timeout(WAIT_S):
        found = await client.get_task(task_id)
        while found.state not in wanted:
            await asyncio.sleep(0.02)
            found = await client.get_task(task_id)
    return found


async def attempts(client: OrbitClient, task_id: str) -> list[AttemptRecord]:
    return (await client.list_attempts(task_id)).attempts


async def test_a_sync_handler_that_sleeps_for_three_leases_keeps_its_lease(platform_dsn: DSN) -> None:
    runner = quick()

    @runner.handler("text.normalize", version="v1", payload_version="v1")
    def handler(payload: Any) -> str:
        time.sleep(3 * SHORT.task_lease_s)
        return "slept"

    async with platform(platform_dsn, SHORT) as client, running(runner, client):
        task_id = await submit(client)
        found = await state(client, task_id, TaskState.SUCCEEDED, TaskState.NEEDS_REVIEW)
        assert (found.state, found.attempt_count) == (TaskState.SUCCEEDED, 1)
    assert runner.counts.evidence_only == 0


async def test_sixty_tasks_at_once_are_taken_without_a_lost_connection(platform_dsn: DSN) -> None:
    runner = quick(concurrency=60)
    calls: Counter[str] = Counter()

    @runner.handler("text.normalize", version="v1", payload_version="v1")
    async def handler(payload: Any, context: TaskContext) -> None:
        calls[context.attempt_id] += 1

    async with platform(platform_dsn) as client:
        for _ in range(60):
            await submit(client)
        async with running(runner, client):
            await counted(runner, lambda counts: counts.confirmed == 60)
        assert set(calls.values()) == {1}
        assert runner.counts.reconnects == 0


async def test_a_retry_is_the_platforms_and_its_history_says_why(platform_dsn: DSN) -> None:
    runner = quick()

    @runner.handler("text.normalize", version="v1", payload_version="v1")
    def handler(payload: Any, context: TaskContext) -> dict[str, int]:
        if context.attempt_number == 1:
            raise WorkerFailure("TEMPORARY_REJECTION", retryable=True, details={"reason_ref": "x"})
        return {"attempt": context.attempt_number}

    async with platform(platform_dsn) as client, running(runner, client):
        task_id = await submit(client, retry=RetryPolicy(max_attempts=3, initial_delay_ms=50, max_delay_ms=100))
        found = await state(client, task_id, TaskState.SUCCEEDED)
        first, second = await attempts(client, task_id)
        assert isinstance(found.result, Raw)
        assert bytes(found.result) == b'{"attempt":2}'
    assert (first.outcome, first.error_code, first.retryable) == ("FAILED", "TEMPORARY_REJECTION", True)
    assert (first.decision, second.outcome) == ("RETRYABLE_FAILURE", "SUCCEEDED")
    assert first.concurrency_token is UNSET


async def test_the_reason_of_an_unknown_is_kept_with_the_attempt(platform_dsn: DSN) -> None:
    runner = quick()

    @runner.handler("text.normalize", version="v1", payload_version="v1")
    async def handler(payload: Any) -> None:
        raise SystemExit(SECRET)

    async with platform(platform_dsn) as client, running(runner, client):
        task_id = await submit(client)
        found = await state(client, task_id, TaskState.NEEDS_REVIEW)
        (attempt,) = await attempts(client, task_id)
        assert found.error_code == "HANDLER_EXITED"
        assert isinstance(attempt.result, Raw)
        assert (
            bytes(attempt.result) == b'{"exception":"SystemExit","reason":"the handler asked for the process\'s end"}'
        )


async def test_a_running_task_is_cancelled_by_the_handlers_word(platform_dsn: DSN) -> None:
    runner = quick()

    @runner.handler("text.normalize", version="v1", payload_version="v1")
    async def handler(payload: dict[str, bool]) -> None:
        try:
            await asyncio.sleep(WAIT_S)
        except asyncio.CancelledError:
            if payload["knows"]:
                raise WorkerCancelled("ROLLED_BACK") from None
            raise

    async with platform(platform_dsn) as client, running(runner, client):
        knows = await submit(client, b'{"knows":true}')
        passes = await submit(client, b'{"knows":false}', recovery_safety=RecoverySafety.IDEMPOTENT)
        await counted(runner, lambda counts: counts.calling == 2)
        await client.cancel_task(knows)
        await client.cancel_task(passes)
        assert (await state(client, knows, TaskState.CANCELLED)).error_code == "ROLLED_BACK"
        assert (await state(client, passes, TaskState.NEEDS_REVIEW)).error_code == "CANCELLED_UNCONFIRMED"


async def test_a_limited_queue_starts_no_more_than_it_may_and_calls_nothing_before(platform_dsn: DSN) -> None:
    runner = quick(concurrency=4)
    calls: Counter[str] = Counter()

    @runner.handler("text.normalize", version="v1", payload_version="v1")
    async def handler(payload: Any, context: TaskContext) -> None:
        calls[context.attempt_id] += 1

    async with platform(platform_dsn) as client:
        limits = QueueLimits(start_limit=2, start_window_ms=1_000)
        await client.set_queue_limits(client.credentials.queue_id, limits)
        task_ids = [await submit(client) for _ in range(6)]
        async with running(runner, client):
            for task_id in task_ids:
                await state(client, task_id, TaskState.SUCCEEDED)
            starts = Counter([(await attempts(client, one))[0].started_at for one in task_ids])
    windows: Counter[Any] = Counter()
    for started_at, number in starts.items():
        assert isinstance(started_at, str)
        windows[started_at[:19]] += number
    assert max(windows.values()) <= 2
    assert set(calls.values()) == {1}


async def test_a_handlers_time_ends_a_margin_before_its_lease_and_no_tick_comes_after_it(platform_dsn: DSN) -> None:
    """Attempts end by their timeout; the database's times say when.

    The margin is two seconds, because a busy machine may run a handler a little after its time and report late.
    """
    limits = Limits(local_margin_s=2.0)
    runner = quick(concurrency=20)
    deadlines: dict[str, float] = {}
    last: dict[str, float] = {}

    @runner.handler("text.normalize", version="v1", payload_version="v1")
    async def handler(payload: Any, context: TaskContext) -> None:
        # The same machine has both clocks; that they are compared at all is the test's matter alone.
        deadlines[context.attempt_id] = context.deadline - time.monotonic() + time.time()
        while not context.cancelled.is_set():
            last[context.attempt_id] = time.time()
            await asyncio.sleep(0.005)

    async with platform(platform_dsn, limits) as client:
        task_ids = [await submit(client, retry=RetryPolicy(attempt_timeout_ms=2_600)) for _ in range(20)]
        async with running(runner, client):
            for task_id in task_ids:
                await state(client, task_id, TaskState.NEEDS_REVIEW)
        for task_id in task_ids:
            (attempt,) = await attempts(client, task_id)
            assert isinstance(attempt.timeout_at, str)
            lease_over = datetime.fromisoformat(attempt.timeout_at).timestamp()
            assert deadlines[attempt.attempt_id] <= lease_over - limits.local_margin_s
            assert last[attempt.attempt_id] < lease_over
            assert attempt.error_code == "EXECUTION_DEADLINE"


async def test_nothing_secret_is_logged_or_shown_at_any_level(platform_dsn: DSN) -> None:
    runner = quick()
    secrets: set[str] = set()

    @runner.handler("text.normalize", version="v1", payload_version="v1")
    def handler(payload: dict[str, str], context: TaskContext) -> dict[str, str]:
        assert runner._attempts is not None
        for live in runner._attempts.known():
            secrets.add(live.attempt.lease_secret.reveal())
        if payload["how"] == "raise":
            raise ValueError(payload["text"])
        if payload["how"] == "fail":
            raise WorkerFailure("BROKEN", details=payload)
        return payload

    with everything_logged() as logged:
        async with platform(platform_dsn) as client, running(runner, client):
            secrets.add(client.credentials.token.reveal())
            for how in ("raise", "fail", "return"):
                task_id = await submit(client, f'{{"how":"{how}","text":"{SECRET}"}}'.encode())
                await state(client, task_id, TaskState.SUCCEEDED, TaskState.FAILED, TaskState.NEEDS_REVIEW)
            shown = repr([runner, runner.counts, runner.health, runner._attempts, *runner._handlers.values()])
    assert len(secrets) == 4
    text = "\n".join(logged.lines) + shown
    assert "handler text.normalize@v1" in text
    for secret in (SECRET, *secrets):
        assert secret not in text

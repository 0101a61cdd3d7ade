"""The test kit, used as a team would use it for its own worker."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orbit.protocol.attempt_v1 import Outcome
from orbit.protocol.http_v1 import TaskState
from orbit.sdk import InvalidConfiguration, StopReason, TaskContext, WorkerCancelled, WorkerFailure, WorkerRunner
from orbit.sdk.testing import FakeClock, FakePlatform, Running, run_handler
from tests.support.runners import WAIT_S, ended, leftovers, quick, running

ROOT = Path(__file__).parents[2]


@dataclass
class Text:
    text: str


def normalize(payload: Text) -> Text:
    return Text(payload.text.strip().upper())


async def patient(payload: Any, context: TaskContext) -> str:
    try:
        await asyncio.sleep(3_600)
    except asyncio.CancelledError:
        if context.cancelled.reason is StopReason.CANCEL_REQUESTED:
            raise WorkerCancelled("ROLLED_BACK") from None
        raise
    return "slept"


async def test_a_handler_runs_without_a_platform() -> None:
    report = await run_handler(normalize, {"text": " a "})
    assert (report.outcome, report.error_code, report.result) == (Outcome.SUCCEEDED, None, {"text": "A"})


async def test_an_instance_of_the_payloads_type_travels_as_json() -> None:
    assert (await run_handler(normalize, Text(" a "))).result == {"text": "A"}


async def test_what_the_handler_says_of_a_failure() -> None:
    def handler(payload: Any, context: TaskContext) -> None:
        raise WorkerFailure("BUSY", retryable=context.attempt_number == 1, details=[context.attempt_number])

    first = await run_handler(handler, attempt_number=1)
    assert (first.outcome, first.error_code, first.retryable, first.result) == (Outcome.FAILED, "BUSY", True, [1])
    assert (await run_handler(handler, attempt_number=2)).retryable is False


async def test_whatever_else_happens_is_unknown() -> None:
    report = await run_handler(normalize, {"text": 1})
    assert (report.outcome, report.error_code) == (Outcome.UNKNOWN, "INVALID_PAYLOAD")
    report = await run_handler(lambda payload: 1 / payload, 0)
    assert (report.outcome, report.error_code) == (Outcome.UNKNOWN, "HANDLER_RAISED")
    assert report.result["exception"] == "ZeroDivisionError"


async def test_a_cancel_request_while_it_runs() -> None:
    report = await run_handler(patient, during=Running.cancel)
    # Cancelled before its first step: it never got to say that it rolled back.
    assert (report.outcome, report.error_code) == (Outcome.UNKNOWN, "CANCELLED_UNCONFIRMED")

    async def later(running: Running) -> None:
        await asyncio.sleep(0)
        running.cancel()

    report = await run_handler(patient, during=later)
    assert (report.outcome, report.error_code) == (Outcome.CANCELLED, "ROLLED_BACK")


async def test_a_deadline_comes_when_the_test_says_so() -> None:
    clock = FakeClock()
    seen: list[float] = []

    async def handler(payload: Any, context: TaskContext) -> None:
        seen.append(context.remaining_s)
        await asyncio.sleep(3_600)

    async def advance(running: Running) -> None:
        await clock.advance(9.0)
        assert running.stopped is None
        assert running.context.remaining_s == pytest.approx(1.0)
        await clock.advance(1.0)

    report = await run_handler(handler, deadline_s=10.0, clock=clock, during=advance)
    assert (report.outcome, report.error_code) == (Outcome.UNKNOWN, "EXECUTION_DEADLINE")
    assert seen == [pytest.approx(10.0)]
    assert leftovers() == []


async def test_a_sync_handler_that_does_not_end_is_left_alone() -> None:
    go_on = threading.Event()
    clock = FakeClock()
    stuck = run_handler(lambda payload: go_on.wait(), deadline_s=5.0, clock=clock, during=lambda _: clock.advance(5.0))
    report = await asyncio.wait_for(stuck, WAIT_S)
    assert (report.outcome, report.error_code) == (Outcome.UNKNOWN, "EXECUTION_DEADLINE")
    go_on.set()


async def test_the_context_is_what_the_test_says() -> None:
    contexts: list[TaskContext] = []

    def handler(payload: Any, context: TaskContext) -> None:
        contexts.append(context)

    await run_handler(
        handler,
        attempt_number=2,
        max_attempts=5,
        effect_uncertain=True,
        concurrency_key="account-1",
        concurrency_token=7,
        task_id="a" * 32,
    )
    (context,) = contexts
    assert (context.task_id, context.attempt_number, context.max_attempts) == ("a" * 32, 2, 5)
    assert (context.effect_uncertain, context.concurrency_key, context.concurrency_token) == (True, "account-1", 7)


async def test_what_is_no_handler_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="a handler takes"):
        await run_handler(lambda: None)  # type: ignore[arg-type]  # the point


async def test_a_clock_wakes_sleepers_in_their_order() -> None:
    clock = FakeClock()
    woken: list[int] = []

    async def sleeper(number: int, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(number)

    async with asyncio.TaskGroup() as group:
        for number, seconds in enumerate((3.0, 1.0, 2.0, 0.0)):
            group.create_task(sleeper(number, seconds))
        await asyncio.sleep(0)
        assert clock.sleeping == 3
        before = clock()
        await clock.advance(1.5)
        assert woken == [3, 1]
        await clock.advance(1.5)
        assert clock() - before == pytest.approx(3.0)
    assert woken == [3, 1, 2, 0]


async def test_a_cancelled_sleeper_wakes_nobody() -> None:
    clock = FakeClock()
    task = asyncio.create_task(clock.sleep(1.0))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert clock.sleeping == 0
    await clock.advance(2.0)


async def test_reconnects_wait_on_the_fake_clock() -> None:
    clock = FakeClock()
    runner = WorkerRunner(timing=clock.timing())
    runner.handler("h", version="v1", payload_version="v1")(lambda payload: payload)
    async with FakePlatform(clock=clock) as platform, platform.client() as client, running(runner, client):
        await platform.until(lambda: len(platform.saw("worker.capacity")) == 1)
        platform.cut()
        while clock.sleeping == 0:
            await asyncio.sleep(0)
        assert len(platform.connections) == 1
        await clock.advance(0.2)
        await platform.until(lambda: len(platform.saw("worker.capacity")) == 2)


async def test_two_workers_share_a_fake_platform_and_none_fences_the_other() -> None:
    runners = [quick(concurrency=1), quick(concurrency=1)]
    gate = asyncio.Event()

    async def handler(payload: Any) -> None:
        await gate.wait()

    for runner in runners:
        runner.handler("h", version="v1", payload_version="v1")(handler)
    async with FakePlatform() as platform, platform.client() as client:
        async with running(runners[0], client, alone=False), running(runners[1], client, alone=False):
            for _ in range(2):
                platform.submit("h")
            await platform.until(lambda: {one.state for one in platform.tasks.values()} == {TaskState.RUNNING})
            gate.set()
            assert set(await ended(platform)) == {TaskState.SUCCEEDED}
        assert [runner.counts.confirmed for runner in runners] == [1, 1]
    assert leftovers() == []


TEST = """
import asyncio
from orbit.protocol.http_v1 import SubmitTask, TaskState
from orbit.sdk import OrbitClient, WorkerRunner
from msgspec import Raw

def test_my_worker(orbit_environ):
    runner = WorkerRunner()
    runner.handler("mine", version="v1", payload_version="v1")(lambda payload: payload)

    async def scenario():
        async with OrbitClient.from_environment(orbit_environ) as client:
            working = asyncio.create_task(runner.run(client))
            task = SubmitTask(queue_id=client.credentials.queue_id, handler="mine", handler_version="v1",
                              payload_version="v1", payload=Raw(b"4711"))
            task_id = (await client.submit_task("key", task)).task.task_id
            await asyncio.wait_for(runner.until(lambda counts: counts.confirmed == 1), 30)
            await runner.stop(5)
            await working
            found = await client.get_task(task_id)
            assert (found.state, bytes(found.result)) == (TaskState.SUCCEEDED, b"4711")

    asyncio.run(scenario())
"""


def test_the_fixture_gives_a_real_orbit(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["orbit.sandbox.pytest_plugin"]\n')
    (tmp_path / "test_mine.py").write_text(TEST)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        # Without the options of the run that this test is part of.
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout + done.stderr

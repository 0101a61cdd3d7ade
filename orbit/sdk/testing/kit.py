"""Run one handler as a worker would, without a platform."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from orbit.protocol import strict_json
from orbit.protocol.attempt_v1 import Outcome
from orbit.protocol.limits import Limits
from orbit.protocol.values import new_id
from orbit.sdk.changes import Changes
from orbit.sdk.handlers import AnyHandler, Cancelled, StopReason, TaskContext, register
from orbit.sdk.runner_call import Call
from orbit.sdk.runner_outcome import judge
from orbit.sdk.runner_rules import GRACE_S
from orbit.sdk.runner_threads import Threads
from orbit.sdk.testing.clock import FakeClock

DEADLINE_S: Final = 300.0
"""The time an attempt has unless a test says otherwise: the platform's own default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerReport:
    """What the platform would be told of the attempt.

    `result` is what a reader of the task's result parses from it; of an UNKNOWN it is the evidence.
    """

    outcome: Outcome
    error_code: str | None
    retryable: bool
    result: Any = field(repr=False)
    context: TaskContext = field(repr=False)


class Running:
    """A handler that is being run; what `run_handler`'s `during` gets to act on it."""

    def __init__(self, call: Call, context: TaskContext, changes: Changes) -> None:
        self._call = call
        self._changes = changes
        self.context = context
        self.stopped: StopReason | None = None

    def cancel(self) -> None:
        """Ask for the task's cancellation, as a person would."""
        self._call.stop(StopReason.CANCEL_REQUESTED)

    def stop(self, reason: StopReason) -> None:
        """Tell the handler to stop for good."""
        if self.stopped is None:
            self.stopped = reason
            self._call.stop(reason)
            self._changes.notify()


async def run_handler(
    handler: AnyHandler,
    payload: Any = None,
    *,
    attempt_number: int = 1,
    max_attempts: int | None = None,
    deadline_s: float = DEADLINE_S,
    effect_uncertain: bool = False,
    concurrency_key: str | None = None,
    concurrency_token: int | None = None,
    task_id: str | None = None,
    clock: FakeClock | None = None,
    during: Callable[[Running], Any] | None = None,
    limits: Limits | None = None,
) -> HandlerReport:
    """Call a handler with a JSON payload, in a thread if it is sync, and return what would be reported.

    The payload travels as JSON, so that its type is read as in production. `during(running)` is called, and awaited if
    it is async, while the handler runs: cancel it, stop it, advance the clock. With a FakeClock the deadline comes
    when the test says so. Raises InvalidConfiguration for a function that is no handler, TypeError for a payload that
    is no JSON. A handler that does not end is left alone, as a worker would.
    """
    limits = limits or Limits()
    registered = register(handler, "handler", "v1", "v1")
    value = strict_json.parse(msgspec.json.encode(payload), max_bytes=limits.payload_bytes)
    now, sleep = (clock, clock.sleep) if clock is not None else (time.monotonic, asyncio.sleep)
    context = TaskContext(
        task_id=task_id or new_id(),
        attempt_id=new_id(),
        attempt_number=attempt_number,
        max_attempts=max_attempts or attempt_number,
        deadline=now() + deadline_s,
        effect_uncertain=effect_uncertain,
        concurrency_key=concurrency_key,
        concurrency_token=concurrency_token,
        cancelled=Cancelled(),
        clock=now,
    )
    changes, threads = Changes(), Threads(1)
    call = Call(registered, value, context, threads=threads, limits=limits, ended=changes.notify, clock=now)
    running = Running(call, context, changes)

    async def watch_deadline() -> None:
        await sleep(deadline_s)
        running.stop(StopReason.DEADLINE)

    watching = asyncio.create_task(watch_deadline(), name="orbit-testing-deadline")
    try:
        if during is not None:
            done = during(running)
            if asyncio.iscoroutine(done):
                await done
        await changes.until(lambda: call.done or running.stopped is not None)
        if running.stopped is not None and not call.done:
            await changes.until(lambda: call.done, asyncio.get_running_loop().time() + GRACE_S[running.stopped])
        word = call.word
    finally:
        watching.cancel()
        await asyncio.wait([watching])
        if not call.done:
            call.stop(StopReason.SHUTDOWN)
            await changes.until(lambda: call.done, asyncio.get_running_loop().time() + GRACE_S[StopReason.SHUTDOWN])
        threads.close()
    told = running.stopped or context.cancelled.reason
    report = judge(word, told, asked=context.cancelled.requested)
    return HandlerReport(
        outcome=report.outcome,
        error_code=report.error_code,
        retryable=report.retryable,
        result=None if report.result is None else msgspec.json.decode(report.result),
        context=context,
    )

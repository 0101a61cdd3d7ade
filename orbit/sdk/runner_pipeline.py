"""One attempt's way: wait for a place, ask to start, call the handler, report, and wait for who did not stop.

Each step takes an Execution and gives the next; one that is over skips the rest. What an answer means is decided in
`runner_rules`, what a handler's end means in `runner_outcome`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, Protocol

from orbit.protocol.attempt_v1 import Disposition, Finish
from orbit.protocol.grant import local_deadline
from orbit.protocol.limits import Limits
from orbit.protocol.values import new_id
from orbit.sdk.handlers import StopReason, TaskContext
from orbit.sdk.runner_call import Call
from orbit.sdk.runner_counts import Tally
from orbit.sdk.runner_link import GaveUp, Link, Refused
from orbit.sdk.runner_live import Execution
from orbit.sdk.runner_outcome import TOO_LATE, Code, Report, judge, uncalled, unknown
from orbit.sdk.runner_rules import GRACE_S, Asked, Stage, Then, after_report, renew_at
from orbit.sdk.runner_threads import Threads
from orbit.sdk.worker import WorkerConnection
from orbit.sdk.worker_lease import WorkerResult

LAPSE_TOLERANCE_S: Final = 0.5
"""A handler that is stopped so close to the end of its attempt's time was stopped by that, not by a lost lease."""

_log = logging.getLogger(__name__)


class Places(Protocol):
    """Where handlers run, at most so many at a time."""

    @property
    def closed(self) -> bool:
        """Whether nothing new may start."""

    async def enter(self, give_up: Callable[[], bool], until: float) -> bool:
        """Wait for a place; says whether there was one."""

    def leave(self) -> None:
        """Give the place back."""


class Pipeline:
    """The steps, and what they need."""

    def __init__(self, link: Link, places: Places, threads: Threads, tally: Tally, limits: Limits) -> None:
        self._link = link
        self._places = places
        self._threads = threads
        self._tally = tally
        self._limits = limits

    async def run(self, execution: Execution) -> Execution:
        """Bring an assigned attempt to its end. Cancelling leaves its outcome to the platform."""
        live = execution.live
        inside = False
        try:
            execution = await self._reserve(execution)
            inside = execution.stage is not Stage.OVER
            execution = await self._start(execution)
            if execution.stage is Stage.RUNNING:
                # A task of its own, so that nothing in the handler's way can hold it up.
                live.renewing = asyncio.create_task(self._renew(execution), name=f"orbit-runner-renewals {live}")
            execution = await self._call(execution)
            if inside and not live.running:
                inside = False
                self._places.leave()
            execution = await self._confirm(execution)
            live.settle()
            # An operation under way must not be cancelled: that would end the connection.
            await live.renewed()
            return await self._linger(execution)
        finally:
            if inside:
                self._places.leave()
            self._tally.count(**_left_behind(execution))
            live.settle()
            live.cancel_renewing()

    async def _reserve(self, execution: Execution) -> Execution:
        """Wait for a place, as long as the lease is worth it."""
        live = execution.live
        if await self._places.enter(lambda: self._places.closed or live.over or live.asked, execution.start_by):
            return execution.to(Stage.STARTING)
        self._tally.count(dropped=1)
        return execution.to(Stage.OVER)

    async def _start(self, execution: Execution) -> Execution:
        """Ask for the permission to run, with one message id over all tries. The handler runs on no other word."""
        if execution.stage is not Stage.STARTING:
            return execution
        live = execution.live
        called_at = 0.0

        def give_up(unsure: bool) -> bool:
            late = time.monotonic() >= execution.start_by
            return not unsure and (late or self._places.closed or live.over or live.asked)

        async def start(connection: WorkerConnection) -> WorkerResult:
            nonlocal called_at
            called_at = time.monotonic()
            return await connection.start(execution.start_id, live.attempt)

        try:
            started = await self._link.ask(Asked.START, start, give_up=give_up, until=execution.start_by)
        except (Refused, GaveUp) as error:
            _log.info("attempt %s: not started: %s", live.attempt.attempt_id, error)
            self._tally.count(dropped=1)
            return execution.to(Stage.OVER)
        self._tally.count(started=1)
        live.granted(started.lease)
        deadline = started.lease.execution_deadline()
        if deadline is None or live.asked or live.stopped is not None:
            live.judge()
            return execution.to(Stage.REPORTING, report=uncalled(asked=live.asked and started.lease.active))
        live.deadline = deadline
        return execution.to(Stage.RUNNING, deadline=self._time_is_up(execution, started, called_at))

    def _time_is_up(self, execution: Execution, started: WorkerResult, called_at: float) -> float:
        """When the attempt's time ends, as its lease will at the latest: attempt timeout and task deadline."""
        timeout = timedelta(milliseconds=execution.task.attempt_timeout_ms)
        end: datetime = min(started.receipt.recorded_at + timeout, execution.task.deadline_at)
        return local_deadline(called_at, end, started.lease.server_time, self._limits.local_margin_s)

    async def _call(self, execution: Execution) -> Execution:
        """Call the handler and wait for it, for its deadline or for a wish to stop."""
        if execution.stage is not Stage.RUNNING:
            return execution
        live, loop = execution.live, asyncio.get_running_loop()
        call = Call(
            execution.handler,
            execution.task.payload,
            self._context(execution),
            threads=self._threads,
            limits=self._limits,
            ended=live.notify,
        )
        live.begin(call)
        while not await live.changes.until(lambda: call.done or live.stopped is not None, lambda: live.deadline):
            if time.monotonic() >= live.deadline:
                live.stop(_why_late(execution))
        if (call.ended_at or 0.0) > live.deadline:
            # It ended late, and the loop looked later still.
            live.stop(_why_late(execution))
        if live.stopped is not None:
            await live.changes.until(lambda: call.done, loop.time() + GRACE_S[live.stopped])
        if not call.done:
            _log.error(
                "handler %s: attempt %s does not end although it was told to (%s); its place stays taken",
                execution.handler,
                live.attempt.attempt_id,
                live.stopped,
            )
        live.judge()
        word = call.word
        report = judge(word, _told(execution), asked=live.asked)
        return execution.to(Stage.REPORTING, report=report, unheard=word is None)

    def _context(self, execution: Execution) -> TaskContext:
        task = execution.task
        assert execution.deadline is not None, "set by the start"
        return TaskContext(
            task_id=task.task_id,
            attempt_id=execution.live.attempt.attempt_id,
            attempt_number=task.attempt_number,
            max_attempts=task.max_attempts,
            deadline=execution.deadline,
            effect_uncertain=task.effect_uncertain,
            concurrency_key=task.concurrency_key,
            concurrency_token=task.concurrency_token,
            retry_of=task.retry_of,
        )

    async def _renew(self, execution: Execution) -> None:
        """Renew the lease until the report is confirmed, or until there is nothing left to renew."""
        live, loop = execution.live, asyncio.get_running_loop()

        def done() -> bool:
            return live.settled or live.over or live.asked or live.stopped in TOO_LATE

        async def renew(connection: WorkerConnection) -> WorkerResult:
            return await connection.renew(new_id(), live.attempt)

        last: datetime | None = None
        while True:
            await live.changes.until(done, renew_at(loop.time(), live.deadline))
            try:
                renewed = await self._link.ask(Asked.RENEW, renew, give_up=lambda _: done())
            except GaveUp:
                return
            except Refused as error:
                if not live.settled:
                    _log.warning("attempt %s: the lease is lost: %s", live.attempt.attempt_id, error.code)
                    live.lost()
                return
            live.granted(renewed.lease)
            until = renewed.lease.lease_until
            if until is None or (last is not None and until <= last):
                return  # the attempt's time bounds it
            last = until

    async def _confirm(self, execution: Execution) -> Execution:
        """Report until the platform has answered, with one message id over all tries."""
        if execution.stage is not Stage.REPORTING:
            return execution
        try:
            answer = await self._report(execution)
        except Refused as refused:
            other = _replacement(execution, refused)
            if other is None:
                _log.error("attempt %s: the report was refused: %s", execution.live.attempt.attempt_id, refused.code)
                self._tally.count(refused=1)
                return execution.to(Stage.OVER)
            _log.warning("attempt %s: reported again as UNKNOWN: %s", execution.live.attempt.attempt_id, refused.code)
            return await self._confirm(execution.to(Stage.REPORTING, report=other, finish_id=new_id()))
        evidence = answer.disposition is Disposition.EVIDENCE_ONLY
        self._tally.count(confirmed=1, evidence_only=int(evidence))
        return execution.to(Stage.OVER)

    async def _report(self, execution: Execution) -> WorkerResult:
        report = execution.report
        assert report is not None, "made before this stage"
        finish = Finish(
            attempt=execution.live.attempt,
            outcome=report.outcome,
            result=report.result,
            error_code=report.error_code,
            retryable=report.retryable,
        )
        return await self._link.ask(
            Asked.FINISH, lambda connection: connection.finish(execution.finish_id, finish), give_up=lambda _: False
        )

    async def _linger(self, execution: Execution) -> Execution:
        """Wait for a handler that goes on after its attempt was reported; what it then says is kept as evidence."""
        live = execution.live
        if live.call is None or not execution.unheard:
            return execution
        await live.changes.until(lambda: not live.running)
        late = judge(live.call.word, _told(execution), asked=live.asked)
        try:
            await self._report(replace(execution, report=late, finish_id=new_id()))
        except Refused as refused:
            _log.warning("attempt %s: late evidence was refused: %s", live.attempt.attempt_id, refused.code)
        return execution


def _left_behind(execution: Execution) -> dict[str, int]:
    """What an execution counts as that ends where it is."""
    match execution.stage:
        case Stage.OVER:
            return {}
        case Stage.RESERVED | Stage.STARTING:
            return {"dropped": 1}
        case Stage.RUNNING | Stage.REPORTING:
            return {"abandoned": 1}


def _why_late(execution: Execution) -> StopReason:
    """Say what a deadline that has come was: the attempt's, or only that of a lease that could not be renewed."""
    assert execution.deadline is not None, "set by the start"
    if execution.live.deadline >= execution.deadline - LAPSE_TOLERANCE_S:
        return StopReason.DEADLINE
    return StopReason.LEASE_LOST


def _told(execution: Execution) -> StopReason | None:
    live = execution.live
    return live.stopped or (StopReason.CANCEL_REQUESTED if live.asked else None)


def _replacement(execution: Execution, refused: Refused) -> Report | None:
    """Give another report for one that was refused; None where no other would be taken."""
    report = execution.report
    assert report is not None, "made before this stage"
    then = refused.then if refused.then is Then.REPLACE else after_report(report.outcome, refused.code)
    code = Code.CANCELLED_UNASKED if refused.then is not Then.REPLACE else Code.INVALID_RESULT
    other = unknown(code)
    return None if then is not Then.REPLACE or other == report else other

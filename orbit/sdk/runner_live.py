"""One attempt that a runner holds: what it is, as one immutable struct, and what happens to it meanwhile.

`Execution` goes through the pipeline of `runner_pipeline`, each step giving the next one. `Live` is what others reach
while a step is under way: leases that were granted, wishes to stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from orbit.protocol.assignment_v1 import AssignedTask
from orbit.protocol.attempt_v1 import Attempt
from orbit.sdk.changes import Changes
from orbit.sdk.handlers import RegisteredHandler, StopReason
from orbit.sdk.runner_call import Call
from orbit.sdk.runner_outcome import Report
from orbit.sdk.runner_rules import NEXT_STAGES, Stage
from orbit.sdk.worker_lease import WorkerLease

Identity: TypeAlias = tuple[str, str, int]
"""Task, attempt and epoch."""


class Live:
    """What happens to an attempt while it is on its way. For the event loop's thread."""

    def __init__(self, attempt: Attempt, start_by: float, changed: Callable[[], None]) -> None:
        """`start_by` is the moment after which starting it is no longer worth asking for.

        `changed` is called after each change, for those who wait for something else as well.
        """
        self.attempt = attempt
        self._changed = changed
        self.changes = Changes()
        self.deadline = start_by
        """By when the handler must have stopped unless the lease is renewed; before the start, `start_by`."""
        self.asked = False
        """Somebody asked for the task's cancellation."""
        self.over = False
        """The platform said that the attempt has no lease any more."""
        self.stopped: StopReason | None = None
        """Why the handler must stop, cancel requests apart."""
        self.judged = False
        """What is reported is decided, whether or not the handler has ended."""
        self.settled = False
        """Nothing about it is to be told to the platform any more."""
        self.call: Call | None = None
        self.renewing: asyncio.Task[None] | None = None
        """Keeps the lease; belongs to the pipeline."""

    def __str__(self) -> str:
        return self.attempt.attempt_id

    @property
    def identity(self) -> Identity:
        """Which attempt this is."""
        return self.attempt.identity

    @property
    def running(self) -> bool:
        """Whether its handler runs."""
        return self.call is not None and not self.call.done

    def notify(self) -> None:
        """Let everybody who waits look again."""
        self.changes.notify()
        self._changed()

    def begin(self, call: Call) -> None:
        """The handler was called."""
        self.call = call
        self.notify()

    def cancel(self) -> None:
        """Somebody asked for the task's cancellation; the handler is told once."""
        if not self.asked:
            self.asked = True
            if self.call is not None:
                self.call.stop(StopReason.CANCEL_REQUESTED)
            self.notify()

    def stop(self, reason: StopReason) -> None:
        """The handler must stop. Only the first reason counts."""
        if self.stopped is None:
            self.stopped = reason
            if self.call is not None:
                self.call.stop(reason)
            self.notify()

    def granted(self, lease: WorkerLease) -> None:
        """Take what the platform says holds now. A handler that was stopped is not revived."""
        if lease.cancel_requested_at is not None:
            self.cancel()
        if not lease.active:
            self.lost()
            return
        deadline = lease.execution_deadline()
        if deadline is not None and self.stopped is None:
            self.deadline = max(self.deadline, deadline)
            self.notify()

    def lost(self) -> None:
        """The platform says that the attempt has no lease any more."""
        self.over = True
        if self.call is not None:
            self.stop(StopReason.LEASE_LOST)
        self.notify()

    def judge(self) -> None:
        """What is reported is decided."""
        self.judged = True
        self.notify()

    async def renewed(self) -> None:
        """Wait until the renewals have ended; raises what went wrong in them."""
        if self.renewing is not None:
            await self.renewing

    def cancel_renewing(self) -> None:
        """End the renewals, whatever they do."""
        if self.renewing is not None:
            self.renewing.cancel()

    def settle(self) -> None:
        """Nothing more is to be told to the platform."""
        self.settled = True
        self.notify()


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One attempt on its way through the pipeline. `start_id` and `finish_id` are its messages, made once."""

    task: AssignedTask = field(repr=False)
    handler: RegisteredHandler
    live: Live = field(repr=False, compare=False)
    start_by: float
    start_id: str
    finish_id: str
    stage: Stage = Stage.RESERVED
    deadline: float | None = None
    """The end of the attempt's time, monotonic, known from the start on."""
    report: Report | None = None
    unheard: bool = False
    """The report had to be made before the handler had ended."""

    def to(self, stage: Stage, **changes: Any) -> Execution:
        """Give the execution in its next stage."""
        assert stage in NEXT_STAGES[self.stage], f"{self.stage} is not followed by {stage}"
        return replace(self, stage=stage, **changes)

"""The tasks of a platform in memory: what an attempt's end does to its task, as far as a worker can see it.

The rules are those of seed safe-retry section 2, without waits between attempts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import msgspec

from orbit.protocol.attempt_v1 import Attempt, AttemptState, Finish, Outcome, Receipt
from orbit.protocol.http_v1 import RecoverySafety, TaskState
from orbit.protocol.worker_v1 import Capability


@dataclass
class FakeAttempt:
    """One claim of a task. `reports` is all that was said of it, evidence included."""

    attempt: Attempt
    instance_id: str
    lease_until: datetime
    state: AttemptState = AttemptState.LEASED
    started_at: datetime | None = None
    outcome: str | None = None
    reports: list[Finish] = field(default_factory=list)
    receipts: dict[str, Receipt] = field(default_factory=dict)


@dataclass
class FakeTask:
    """One task and its attempts, oldest first."""

    task_id: str
    capability: Capability
    payload: msgspec.Raw = field(repr=False)
    max_attempts: int
    attempt_timeout_ms: int
    recovery_safety: RecoverySafety
    state: TaskState = TaskState.WAITING
    version: int = 1
    attempts: list[FakeAttempt] = field(default_factory=list)
    effect_uncertain: bool = False
    cancel_requested_at: datetime | None = None
    result: Any = field(default=None, repr=False)
    error_code: str | None = None

    @property
    def newest(self) -> FakeAttempt | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def timeout(self) -> timedelta:
        """How long an attempt may run."""
        return timedelta(milliseconds=self.attempt_timeout_ms)

    def held(self, attempt: Attempt) -> FakeAttempt | None:
        """The attempt with this proof."""
        return next((held for held in self.attempts if held.attempt == attempt), None)

    def active(self, held: FakeAttempt) -> bool:
        """Whether an attempt's word counts."""
        return held.state is not AttemptState.ENDED and held is self.newest

    def move(self, state: TaskState, error_code: str | None = None, result: Any = None) -> None:
        """Change the state."""
        self.state, self.error_code, self.result = state, error_code, result
        self.version += 1

    def end(self, report: Finish) -> None:
        """Do what an authorised report asks for."""
        match report.outcome:
            case Outcome.SUCCEEDED:
                self.effect_uncertain = False
                self.move(
                    TaskState.SUCCEEDED, result=None if report.result is None else msgspec.json.decode(report.result)
                )
            case Outcome.FAILED:
                self._end_failed(report.error_code, again=report.retryable)
            case Outcome.UNKNOWN:
                self._end_unknown(report.error_code)
            case Outcome.CANCELLED:
                self.move(self._after_uncertainty(TaskState.CANCELLED), report.error_code)

    def lapse(self) -> None:
        """End the lease of the newest attempt."""
        held = self.newest
        if held is None or held.state is AttemptState.ENDED:
            raise AssertionError("no attempt has a lease")
        started = held.state is AttemptState.RUNNING
        held.state, held.outcome = AttemptState.ENDED, "LEASE_EXPIRED" if started else "UNSTARTED"
        if started:
            self._end_unknown("LEASE_EXPIRED")
        else:
            self._end_failed("UNSTARTED_LEASE_EXPIRED", again=True)

    def _end_failed(self, code: str | None, *, again: bool) -> None:
        if again and self._may_go_on():
            self.move(TaskState.WAITING)
        else:
            self.move(self._after_uncertainty(TaskState.FAILED), code)

    def _end_unknown(self, code: str | None) -> None:
        self.effect_uncertain = True
        if self._may_go_on():
            self.move(TaskState.WAITING)
        else:
            self.move(TaskState.NEEDS_REVIEW, code)

    def _may_go_on(self) -> bool:
        safe = not self.effect_uncertain or self.recovery_safety is RecoverySafety.IDEMPOTENT
        return safe and self.cancel_requested_at is None and len(self.attempts) < self.max_attempts

    def _after_uncertainty(self, state: TaskState) -> TaskState:
        return TaskState.NEEDS_REVIEW if self.effect_uncertain else state

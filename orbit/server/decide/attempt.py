"""What an attempt's end does to its task: facts in, one change out. No SQL, no clock.

The table of seed safe-retry section 2, as one function. Two facts rule it. `effect_uncertain` says that some
authorised execution of the task has an effect that nobody knows; only an authorised success (or a person) takes that
back. A stored cancel intent stops every later attempt.

| what ended the attempt         | may go on                     | may not go on                            |
| ------------------------------ | ----------------------------- | ---------------------------------------- |
| SUCCEEDED                      | SUCCEEDED, certain again      | the same                                 |
| FAILED, not retryable          | FAILED, or NEEDS_REVIEW after uncertainty | the same                     |
| FAILED, retryable              | WAITING: RETRYABLE_FAILURE    | FAILED, or NEEDS_REVIEW after uncertainty |
| UNKNOWN or lease over, started | WAITING: IDEMPOTENT_UNKNOWN   | NEEDS_REVIEW                             |
| lease over, never started      | WAITING: UNSTARTED_LEASE_EXPIRED | FAILED, or NEEDS_REVIEW after uncertainty |
| CANCELLED, with the intent     | CANCELLED, or NEEDS_REVIEW after uncertainty | the same                  |

"May go on" asks for an attempt that is left, a next start strictly before both deadlines, no cancel intent, and, once
an effect is uncertain, a task that was declared IDEMPOTENT.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from orbit.protocol.attempt_v1 import Decision, Outcome
from orbit.protocol.errors import ApiError, ErrorCode
from orbit.protocol.http_v1 import EventType, RecoverySafety, TaskState
from orbit.protocol.retry import retry_delay_ms
from orbit.server.decide.task import Change


class Lapse(StrEnum):
    """Ways in which an attempt ends without a report that counts."""

    LEASE_OVER = "LEASE_OVER"


LEASE_EXPIRED: Final = "LEASE_EXPIRED"
"""Error code of a task whose started attempt was never heard of again."""
UNSTARTED: Final = "UNSTARTED_LEASE_EXPIRED"
"""Error code of a task whose last attempt was claimed and never started."""
DEADLINE_EXCEEDED: Final = "DEADLINE_EXCEEDED"
"""Error code of a task that waited past its deadline or its latest start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The task and its newest attempt as their locked rows have them; `now` is the database's clock.

    `attempt_count` includes the attempt that ends; `started` says whether it was allowed to run.
    """

    now: datetime
    attempt_id: str
    attempt_count: int
    started: bool
    cancel_requested: bool
    effect_uncertain: bool
    recovery_safety: RecoverySafety
    max_attempts: int
    initial_delay_ms: int
    max_delay_ms: int
    deadline_at: datetime
    latest_start_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an authorised worker said. `result` is canonical JSON text."""

    outcome: Outcome
    result: str | None = field(default=None, repr=False)
    error_code: str | None = None
    retryable: bool = False


_EVENTS: Final = {
    TaskState.SUCCEEDED: EventType.SUCCEEDED,
    TaskState.FAILED: EventType.FAILED,
    TaskState.CANCELLED: EventType.CANCELLED,
    TaskState.NEEDS_REVIEW: EventType.NEEDS_REVIEW,
}


def end(facts: Facts, what: Report | Lapse) -> Change:
    """Decide what an attempt's end does to its task.

    Raises ApiError STATE_CONFLICT for a CANCELLED report without a stored cancel intent.
    """
    if isinstance(what, Lapse):
        if facts.started:
            return _unknown(facts, LEASE_EXPIRED)
        return _failed(facts, UNSTARTED, None, Decision.UNSTARTED_LEASE_EXPIRED)
    match what.outcome:
        case Outcome.SUCCEEDED:
            return _change(TaskState.SUCCEEDED, facts.attempt_id, result=what.result)
        case Outcome.FAILED:
            again = Decision.RETRYABLE_FAILURE if what.retryable else None
            return _failed(facts, what.error_code, what.result, again)
        case Outcome.UNKNOWN:
            return _unknown(facts, what.error_code)
        case Outcome.CANCELLED:
            if not facts.cancel_requested:
                raise ApiError(ErrorCode.STATE_CONFLICT, "nobody has asked for this task's cancellation")
            return _final(facts, TaskState.CANCELLED, what.error_code, what.result, None)


def overdue(
    now: datetime, *, deadline_at: datetime, latest_start_at: datetime | None, effect_uncertain: bool
) -> Change | None:
    """Decide the end of a WAITING task whose deadline or latest start has come; None when neither has."""
    if now < deadline_at and (latest_start_at is None or now < latest_start_at):
        return None
    if effect_uncertain:
        return _review(None, DEADLINE_EXCEEDED, Decision.DEADLINE_EXCEEDED)
    return _change(TaskState.FAILED, None, decision=Decision.DEADLINE_EXCEEDED, error_code=DEADLINE_EXCEEDED)


def _unknown(facts: Facts, error_code: str | None) -> Change:
    """An execution with an unknown effect: another one is safe only for a task that was declared IDEMPOTENT."""
    if facts.cancel_requested or facts.recovery_safety is not RecoverySafety.IDEMPOTENT:
        return _review(facts.attempt_id, error_code, Decision.RECONCILIATION_REQUIRED)
    again = _again(facts, Decision.IDEMPOTENT_UNKNOWN, uncertain=True)
    return again if isinstance(again, Change) else _review(facts.attempt_id, error_code, again)


def _failed(facts: Facts, error_code: str | None, result: str | None, again: Decision | None) -> Change:
    """A definite failure, or an attempt that never began: `again` names the reason for which it may be tried again."""
    reason: Decision | None = None
    # After a cancel intent nothing is tried again; that needs no further reason.
    if again is not None and not facts.cancel_requested:
        following = _again(facts, again, uncertain=facts.effect_uncertain)
        if isinstance(following, Change):
            return following
        reason = following
    return _final(facts, TaskState.FAILED, error_code, result, reason)


def _final(
    facts: Facts, state: TaskState, error_code: str | None, result: str | None, decision: Decision | None
) -> Change:
    """An end, unless an earlier effect is uncertain: then a person must look, whatever this attempt said."""
    if facts.effect_uncertain:
        return _review(facts.attempt_id, error_code, decision or Decision.RECONCILIATION_REQUIRED)
    return _change(state, facts.attempt_id, decision=decision, result=result, error_code=error_code)


def _again(facts: Facts, decision: Decision, *, uncertain: bool) -> Change | Decision:
    """Schedule the next attempt, or name what forbids it."""
    if uncertain and facts.recovery_safety is not RecoverySafety.IDEMPOTENT:
        return Decision.RECONCILIATION_REQUIRED
    if facts.attempt_count >= facts.max_attempts:
        return Decision.ATTEMPT_LIMIT
    delay_ms = retry_delay_ms(
        facts.attempt_count,
        initial_delay_ms=facts.initial_delay_ms,
        max_delay_ms=facts.max_delay_ms,
        attempt_id=facts.attempt_id,
    )
    available_at = facts.now + timedelta(milliseconds=delay_ms)
    if available_at >= facts.deadline_at or (
        facts.latest_start_at is not None and available_at >= facts.latest_start_at
    ):
        return Decision.DEADLINE_EXCEEDED
    return Change(
        state=TaskState.WAITING,
        event_type=EventType.REQUEUED,
        effect_uncertain=uncertain,
        attempt_id=facts.attempt_id,
        decision=decision,
        delay_ms=delay_ms,
        available_at=available_at,
    )


def _review(attempt_id: str | None, error_code: str | None, decision: Decision) -> Change:
    """A person must find out; the result, if there was one, stays with the attempt."""
    return _change(TaskState.NEEDS_REVIEW, attempt_id, decision=decision, error_code=error_code, effect_uncertain=True)


def _change(
    state: TaskState,
    attempt_id: str | None,
    *,
    decision: Decision | None = None,
    effect_uncertain: bool = False,
    result: str | None = None,
    error_code: str | None = None,
) -> Change:
    return Change(
        state=state,
        event_type=_EVENTS[state],
        result=result,
        error_code=error_code,
        effect_uncertain=effect_uncertain,
        attempt_id=attempt_id,
        decision=decision,
    )

"""Whether an attempt may still act, and until when: facts of the locked rows in, permission out. No SQL, no clock.

An attempt has authority while it is the task's newest, has not ended and its lease has not run out. Starting asks for
more, since it is the permission to run: no cancel intent, and strictly before the deadline and the latest start (seed
safe-retry section 3). Going on needs no more than the lease: a stored cancel intent leaves the right to report.

No lease passes the task's deadline or the attempt's timeout, and none of an attempt that has not started passes the
latest start: what must not happen any more is then a lease that is over, for the sweeper too.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from orbit.protocol.attempt_v1 import AttemptState
from orbit.protocol.errors import ApiError, ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """An attempt and its task; `now` is the database's clock. `newest`: no later attempt of the task was claimed."""

    now: datetime
    state: AttemptState
    newest: bool
    lease_until: datetime
    timeout_at: datetime | None
    deadline_at: datetime
    latest_start_at: datetime | None
    cancel_requested: bool

    @property
    def active(self) -> bool:
        """Whether the attempt's word counts now."""
        return self.newest and self.state is not AttemptState.ENDED and self.now < self.lease_until

    @property
    def may_report(self) -> bool:
        """Whether a report decides anything: only an execution that was permitted and still has its lease can."""
        return self.active and self.state is AttemptState.RUNNING


@dataclass(frozen=True, slots=True)
class Grant:
    """How long an attempt may go on; `timeout_at` is fixed by its start."""

    lease_until: datetime
    timeout_at: datetime | None


def reserve(now: datetime, lease_s: float, *, deadline_at: datetime, latest_start_at: datetime | None) -> datetime:
    """Decide until when a fresh claim holds; strictly later than `now` for a task that may still start."""
    return _earliest(now + timedelta(seconds=lease_s), deadline_at, latest_start_at)


def start(standing: Standing, lease_s: float, attempt_timeout_ms: int) -> Grant:
    """Permit the execution; its timeout counts from now. Raises ApiError STATE_CONFLICT or STALE_EPOCH."""
    _require_lease(standing)
    if standing.state is AttemptState.RUNNING:
        raise ApiError(ErrorCode.STATE_CONFLICT, "the attempt was started before, by another message")
    if standing.cancel_requested:
        raise ApiError(ErrorCode.STATE_CONFLICT, "the task's cancellation was asked for")
    if standing.now >= _earliest(standing.deadline_at, standing.latest_start_at):
        raise ApiError(ErrorCode.STATE_CONFLICT, "it is too late to start the task")
    timeout_at = standing.now + timedelta(milliseconds=attempt_timeout_ms)
    until = _earliest(standing.now + timedelta(seconds=lease_s), timeout_at, standing.deadline_at)
    return Grant(until, timeout_at)


def renew(standing: Standing, lease_s: float) -> Grant:
    """Prolong the lease within the attempt's bounds. Raises ApiError STATE_CONFLICT or STALE_EPOCH."""
    _require_lease(standing)
    latest_start_at = standing.latest_start_at if standing.state is AttemptState.LEASED else None
    until = _earliest(
        standing.now + timedelta(seconds=lease_s), standing.timeout_at, standing.deadline_at, latest_start_at
    )
    return Grant(until, standing.timeout_at)


def _require_lease(standing: Standing) -> None:
    if not standing.newest:
        raise ApiError(ErrorCode.STALE_EPOCH, "a later attempt of the task was claimed")
    if not standing.active:
        raise ApiError(ErrorCode.STATE_CONFLICT, "the attempt has no lease any more")


def _earliest(first: datetime, *others: datetime | None) -> datetime:
    return min([first, *(moment for moment in others if moment is not None)])

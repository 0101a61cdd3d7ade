"""What the runner does after which answer, as tables. Pure: no clock, no I/O.

The states of one attempt:

    RESERVED ──▶ STARTING ──▶ RUNNING ──▶ REPORTING ──▶ OVER
        │            │ └───── not called ────▲  │         ▲
        └────────────┴──── dropped ──────────┼──┼─────────┤
                                             └──┘ replaced report, late evidence
Sources: seeds worker-sdk sections 4 to 6 and safe-retry section 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from orbit.protocol.attempt_v1 import Outcome
from orbit.protocol.errors import ErrorCode
from orbit.protocol.worker_v1 import CAPACITY_MAX
from orbit.sdk.errors import InvalidRequest, NotSent, OrbitError, WorkerError
from orbit.sdk.handlers import StopReason

RENEW_SHARE: Final = 1 / 3
"""Share of a lease after which it is renewed: two more renewals may fail before it is lost."""

AGAIN_MAX_S: Final = 2.0
"""The longest wait before an operation is repeated on the same connection."""

GRACE_S: Final[Mapping[StopReason, float]] = MappingProxyType(
    {
        # Shorter than the safety margin of a lease, so that the report still counts.
        StopReason.DEADLINE: 0.1,
        StopReason.LEASE_LOST: 1.0,
        StopReason.SHUTDOWN: 1.0,
    }
)
"""How long a handler that must stop may take before its attempt is reported without it."""


class Stage(StrEnum):
    """How far an attempt has got."""

    RESERVED = "RESERVED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    REPORTING = "REPORTING"
    OVER = "OVER"


NEXT_STAGES: Final[Mapping[Stage, frozenset[Stage]]] = MappingProxyType(
    {
        Stage.RESERVED: frozenset({Stage.STARTING, Stage.OVER}),
        Stage.STARTING: frozenset({Stage.RUNNING, Stage.REPORTING, Stage.OVER}),
        Stage.RUNNING: frozenset({Stage.REPORTING}),
        Stage.REPORTING: frozenset({Stage.REPORTING, Stage.OVER}),
        Stage.OVER: frozenset(),
    }
)


class Asked(StrEnum):
    """What the runner asks about an attempt."""

    RESUME = "resume"
    START = "start"
    RENEW = "renew"
    FINISH = "finish"


class Then(StrEnum):
    """What to do when an operation was not granted."""

    AGAIN = "again"  # nothing was carried out: the same message after a wait
    UNSURE = "unsure"  # it may have been carried out: the same message after a wait
    RECONNECT = "reconnect"  # it may have been: the same message on the next connection, after resuming
    GIVE_UP = "give up"  # it was refused for good
    REPLACE = "replace"  # this report was refused, another one may not be


_ALWAYS: Final[Mapping[str, Then]] = MappingProxyType(
    {
        ErrorCode.UNAVAILABLE: Then.UNSURE,
        ErrorCode.INTERNAL: Then.UNSURE,
        ErrorCode.RESOURCE_EXHAUSTED: Then.AGAIN,
        ErrorCode.RATE_LIMITED: Then.AGAIN,
        ErrorCode.SESSION_FENCED: Then.RECONNECT,
    }
)
_OF_FINISH: Final[Mapping[str, Then]] = MappingProxyType(
    {
        # The platform's bounds on numbers are its own, and a newer one's may be narrower than ours.
        ErrorCode.INVALID_ARGUMENT: Then.REPLACE,
        ErrorCode.PAYLOAD_TOO_LARGE: Then.REPLACE,
    }
)


def after(asked: Asked, error: OrbitError) -> Then:
    """Decide what follows an operation that raised."""
    if isinstance(error, WorkerError):
        special = _OF_FINISH.get(error.code) if asked is Asked.FINISH else None
        # A code that only a newer platform knows is a refusal: nothing may run on a guess.
        return special or _ALWAYS.get(error.code, Then.GIVE_UP)
    if isinstance(error, NotSent):
        return Then.AGAIN
    if isinstance(error, InvalidRequest):
        return Then.REPLACE if asked is Asked.FINISH else Then.GIVE_UP
    return Then.RECONNECT


def after_report(outcome: Outcome, code: str) -> Then:
    """Decide what follows a report that was refused for good: CANCELLED needs an intent that the platform has."""
    if outcome is Outcome.CANCELLED and code == ErrorCode.STATE_CONFLICT:
        return Then.REPLACE
    return Then.GIVE_UP


def room(concurrency: int, lingering: int, reporting: int) -> int:
    """Decide the capacity to announce: places in which a handler does not go on after its attempt was reported.

    None when more reports than places wait for their answers: what is finished must not pile up in memory.
    """
    if reporting > concurrency:
        return 0
    return min(CAPACITY_MAX, max(0, concurrency - lingering))


def renew_at(now: float, deadline: float) -> float:
    """Decide when to renew a lease whose local deadline is known."""
    return now + max(0.0, deadline - now) * RENEW_SHARE

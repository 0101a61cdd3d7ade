"""What follows a failed try to apply an event: try again, pause the consumer, or leave it to the next delivery. Pure.

An event is tried again only inside its lease, so that nobody else works on it meanwhile. A try that failed because the
database as a whole cannot be used pauses the consumer instead: events that are not taken spend none of their attempts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from orbit.mysql.errors import Kind

CALL_S: Final = 5.0
"""The longest that one transaction may take (seed result-inbox section 3)."""

CALL_MIN_S: Final = 0.5
"""With less time than this left a try is not worth a round trip to a busy server."""

PROBE_FIRST_S: Final = 2.0
PROBE_LONGEST_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Again:
    """Try the same event again after `delay_s` seconds."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop taking events until the database can be used again; this one comes back with its next lease."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Leave this event unacknowledged; its lease and attempt budget decide what follows."""


Decision = Again | Pause | GiveUp


@dataclass(frozen=True, slots=True)
class Rule:
    """For one kind of failure: how many tries in all, the first pause between two, the longest, and what comes then."""

    tries: int
    first_s: float
    longest_s: float
    then: Pause | GiveUp


_NO_LIMIT: Final = 1_000_000

RULES: Final[Mapping[Kind, Rule]] = MappingProxyType(
    {
        # Lost a race: the lease is the only bound. A hot row is no outage, so other events go on.
        Kind.RETRY: Rule(_NO_LIMIT, 0.05, 1.0, GiveUp()),
        # In doubt: the next try waits on the old session's row lock, so it may come soon.
        Kind.UNCONFIRMED: Rule(_NO_LIMIT, 0.1, 2.0, GiveUp()),
        # One dead connection says nothing about the server; three in a row do.
        Kind.RECONNECT: Rule(3, 0.1, 0.5, Pause()),
        Kind.BACK_OFF: Rule(1, 0.0, 0.0, Pause()),
        # Somebody has to change something. Pausing keeps the budgets until then.
        Kind.CONFIGURATION: Rule(1, 0.0, 0.0, Pause()),
        Kind.DEFECT: Rule(1, 0.0, 0.0, Pause()),
        # These values will be refused every time; the next event may be fine.
        Kind.DATA: Rule(1, 0.0, 0.0, GiveUp()),
    }
)
"""One row for each kind of failure; a test checks that none is missing."""


def after(
    kind: Kind, *, tries: int, budget_left_s: float, lease_left_s: float, draining: bool, jitter: float
) -> Decision:
    """Decide what follows the failure `kind` of try number `tries` (from 1).

    `budget_left_s` is what remains of the caller's own time limit, `lease_left_s` of the delivery's lease; `jitter` is
    a random number in [0, 1). While draining nothing is tried again: what is in doubt stays unacknowledged, and its
    next delivery decides it.
    """
    rule = RULES[kind]
    if draining:
        return GiveUp()
    if tries >= rule.tries:
        return rule.then
    delay_s = min(rule.longest_s, rule.first_s * float(2 ** min(tries - 1, 16))) * (0.5 + jitter / 2)
    if delay_s + CALL_MIN_S > min(budget_left_s, lease_left_s):
        return GiveUp()
    return Again(delay_s)


def call_budget(*, budget_left_s: float, lease_left_s: float) -> float:
    """The seconds that the next try may take: at most 5, and never past the lease or the caller's limit."""
    return min(CALL_S, budget_left_s, lease_left_s)


def probe_delay(probes: int, *, jitter: float) -> float:
    """The seconds before the next probe of an unusable database, after so many: 2 doubling to 30, upper half spread."""
    return min(PROBE_LONGEST_S, PROBE_FIRST_S * float(2 ** min(probes, 16))) * (0.5 + jitter / 2)

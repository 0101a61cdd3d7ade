"""What may become of one delivery: facts of its row in, decision out. No SQL, no clock.

    PENDING ──lease──▶ LEASED ──acknowledge──▶ ACKED
       ▲                  │
       ├──lapse───────────┤  the lease is over and attempts are left
       ├──give back───────┤  released before it was started: the attempt is not spent
       │                  └──expire──▶ EXPIRED ──grant──▶ PENDING

A lease is named by its epoch: each lease has the next one, none is used twice. Attempts are counted apart, since a
lease that was given back spends none. The newest epoch keeps its rights after its lease has run out, for as long as
nobody else was given the delivery: its ACK still counts, and its attempt can still be given back.

`lease_until` stays where a lease ran out and is removed where it was given back. That is how the two are told apart,
and how the same release, sent again, gets the same answer without a second attempt being returned.

Sources: seed result-inbox, sections 3 and 5; design, section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from heapq import merge
from itertools import islice
from types import MappingProxyType
from typing import Final, TypeVar

from orbit.protocol.errors import ApiError, ErrorCode
from orbit.protocol.events_v1 import Disposition, Proof, Released, Verdict
from orbit.protocol.http_v1 import DeliveryState

T = TypeVar("T")


class Step(StrEnum):
    """What can happen to a delivery."""

    LEASE = "LEASE"
    LAPSE = "LAPSE"
    EXPIRE = "EXPIRE"
    ACKNOWLEDGE = "ACKNOWLEDGE"
    GIVE_BACK = "GIVE_BACK"
    GRANT = "GRANT"


TRANSITIONS: Final[Mapping[tuple[DeliveryState, Step], DeliveryState]] = MappingProxyType(
    {
        (DeliveryState.PENDING, Step.LEASE): DeliveryState.LEASED,
        (DeliveryState.PENDING, Step.ACKNOWLEDGE): DeliveryState.ACKED,
        (DeliveryState.PENDING, Step.GIVE_BACK): DeliveryState.PENDING,
        (DeliveryState.PENDING, Step.GRANT): DeliveryState.PENDING,
        (DeliveryState.LEASED, Step.LAPSE): DeliveryState.PENDING,
        (DeliveryState.LEASED, Step.EXPIRE): DeliveryState.EXPIRED,
        (DeliveryState.LEASED, Step.ACKNOWLEDGE): DeliveryState.ACKED,
        (DeliveryState.LEASED, Step.GIVE_BACK): DeliveryState.PENDING,
        (DeliveryState.LEASED, Step.GRANT): DeliveryState.LEASED,
        (DeliveryState.EXPIRED, Step.ACKNOWLEDGE): DeliveryState.ACKED,
        (DeliveryState.EXPIRED, Step.GIVE_BACK): DeliveryState.PENDING,
        (DeliveryState.EXPIRED, Step.GRANT): DeliveryState.PENDING,
    }
)
"""The whole life of a delivery; what is not in it does not happen. ACKED is the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A delivery's row, as far as decisions need it, and the database's clock at the time it was locked (`now`)."""

    now: datetime
    delivery_no: int
    subscription_id: str
    state: DeliveryState
    attempts: int
    attempt_budget: int
    epoch: int
    lease_secret_sha256: str | None = field(default=None, repr=False)
    lease_until: datetime | None = None
    acked_at: datetime | None = None

    @property
    def given_back(self) -> bool:
        """Whether the newest lease was released before it was started."""
        return self.state is DeliveryState.PENDING and self.epoch > 0 and self.lease_until is None


@dataclass(frozen=True, slots=True)
class Ruling:
    """Answer to a list of proofs: a verdict for each, in order, and the deliveries to change, in lock order."""

    verdicts: tuple[Verdict, ...]
    changed: tuple[int, ...]


def claimable(
    tried: Sequence[int], untried: Sequence[int], *, window: int, in_window: int, room: int
) -> tuple[int, ...]:
    """Choose which pending deliveries to lease, oldest first, at most `room`.

    Both candidates' lists are ascending. One that was tried before has its place in the window already; one that was
    not needs a free place. `in_window` counts the places taken, those of the tried candidates among them.
    """
    free = max(0, window - in_window)
    return tuple(islice(merge(tried, islice(untried, free)), max(0, room)))


def lease_over(attempts: int, attempt_budget: int) -> Step:
    """Decide what becomes of a delivery whose lease ran out."""
    return Step.EXPIRE if attempts >= attempt_budget else Step.LAPSE


def acknowledge(proofs: Iterable[Proof], deliveries: Mapping[str, Facts], *, subscription_id: str) -> Ruling:
    """Judge a list of ACKs against the locked rows of those deliveries that exist."""

    def judge(proof: Proof, facts: Facts) -> tuple[Verdict, Facts]:
        if facts.state is DeliveryState.ACKED:
            return _acked(proof, facts), facts
        if facts.given_back:
            return _refused(proof, ErrorCode.STATE_CONFLICT), facts
        after = replace(_step(facts, Step.ACKNOWLEDGE), acked_at=facts.now)
        return _acked(proof, after), after

    return _rule(((proof, proof) for proof in proofs), deliveries, subscription_id, judge)


def release(releases: Iterable[Released], deliveries: Mapping[str, Facts], *, subscription_id: str) -> Ruling:
    """Judge a list of releases; the changed deliveries are those whose attempt is given back.

    A release after the work was started changes nothing here: the attempt is spent, the lease runs to its end, and an
    ACK until then still counts.
    """

    def judge(released: Released, facts: Facts) -> tuple[Verdict, Facts]:
        if facts.state is DeliveryState.ACKED or (facts.given_back and released.started):
            return _refused(released.proof, ErrorCode.STATE_CONFLICT), facts
        after = facts
        if not released.started and not facts.given_back:
            after = replace(_step(facts, Step.GIVE_BACK), attempts=facts.attempts - 1, lease_until=None)
        return _verdict(released.proof, Disposition.RELEASED), after

    return _rule(((one.proof, one) for one in releases), deliveries, subscription_id, judge)


def grant(facts: Facts, attempts: int) -> Facts:
    """Add attempts to the budget; an expired delivery becomes deliverable. Raises ApiError for an acknowledged one."""
    if facts.state is DeliveryState.ACKED:
        raise ApiError(ErrorCode.STATE_CONFLICT, "the delivery is acknowledged; more attempts would not be used")
    return replace(_step(facts, Step.GRANT), attempt_budget=facts.attempt_budget + attempts)


def _step(facts: Facts, step: Step) -> Facts:
    return replace(facts, state=TRANSITIONS[facts.state, step])


def _rule(
    items: Iterable[tuple[Proof, T]],
    deliveries: Mapping[str, Facts],
    subscription_id: str,
    judge: Callable[[T, Facts], tuple[Verdict, Facts]],
) -> Ruling:
    """Judge one item after the other; a later one sees what an earlier one of the same list has done."""
    known = dict(deliveries)
    verdicts: list[Verdict] = []
    for proof, item in items:
        facts = known.get(proof.delivery_id)
        code = _flaw(proof, facts, subscription_id)
        if facts is None or code is not None:
            verdicts.append(_refused(proof, code or ErrorCode.NOT_FOUND))
            continue
        verdict, known[proof.delivery_id] = judge(item, facts)
        verdicts.append(verdict)
    changed = sorted(facts.delivery_no for name, facts in known.items() if facts is not deliveries[name])
    return Ruling(tuple(verdicts), tuple(changed))


def _flaw(proof: Proof, facts: Facts | None, subscription_id: str) -> ErrorCode | None:
    """What is wrong with a proof. An epoch from the future was never given, so its secret cannot be right either."""
    if facts is None or facts.subscription_id != subscription_id:
        return ErrorCode.NOT_FOUND
    if proof.epoch < facts.epoch:
        return ErrorCode.STALE_EPOCH
    digest = facts.lease_secret_sha256
    if proof.epoch > facts.epoch or digest is None or not proof.lease_secret.matches(digest):
        return ErrorCode.INVALID_PROOF
    return None


def _verdict(proof: Proof, disposition: Disposition) -> Verdict:
    return Verdict(delivery_id=proof.delivery_id, epoch=proof.epoch, disposition=disposition)


def _refused(proof: Proof, code: ErrorCode) -> Verdict:
    return replace(_verdict(proof, Disposition.REFUSED), code=code)


def _acked(proof: Proof, facts: Facts) -> Verdict:
    return replace(_verdict(proof, Disposition.ACKED), acked_at=facts.acked_at)

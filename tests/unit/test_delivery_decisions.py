"""The life of a delivery, decided from facts. Every expected value is written down from the design, section 5."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from orbit.protocol.errors import ApiError, ErrorCode
from orbit.protocol.events_v1 import Proof, Released
from orbit.protocol.http_v1 import DeliveryState
from orbit.protocol.values import Secret
from orbit.server.decide import delivery
from orbit.server.decide.delivery import Facts, Ruling, Step

PENDING, LEASED, ACKED, EXPIRED = (
    DeliveryState.PENDING,
    DeliveryState.LEASED,
    DeliveryState.ACKED,
    DeliveryState.EXPIRED,
)

SUBSCRIPTION = "5" * 32
DELIVERY = "d" * 32
OTHER = "e" * 32
SECRET = Secret("A" * 43)
SECRET_SHA256 = "0f007385b6f9d4b7eeb2748605afe1a984a0a3bfa3f014d09e2a784ce9e5cd1a"
WRONG_SECRET = Secret("0" * 42 + "A")
LEASE_UNTIL = datetime(2026, 1, 31, 8, 0, 30, tzinfo=UTC)
NOW = datetime(2026, 1, 31, 8, 0, 10, tzinfo=UTC)
EARLIER = datetime(2026, 1, 31, 8, 0, 5, tzinfo=UTC)

LEASED_TWICE = Facts(
    now=NOW,
    delivery_no=7,
    subscription_id=SUBSCRIPTION,
    state=LEASED,
    attempts=2,
    attempt_budget=3,
    epoch=4,
    lease_secret_sha256=SECRET_SHA256,
    lease_until=LEASE_UNTIL,
)
LAPSED = replace(LEASED_TWICE, state=PENDING)
SPENT = replace(LEASED_TWICE, state=EXPIRED, attempts=3)
GIVEN_BACK = replace(LEASED_TWICE, state=PENDING, attempts=1, lease_until=None)
DONE = replace(LEASED_TWICE, state=ACKED, acked_at=EARLIER)
UNTOUCHED = replace(LEASED_TWICE, state=PENDING, attempts=0, epoch=0, lease_secret_sha256=None, lease_until=None)


def proof(epoch: int = 4, secret: Secret = SECRET, delivery_id: str = DELIVERY) -> Proof:
    return Proof(delivery_id=delivery_id, epoch=epoch, lease_secret=secret)


def ack(facts: Facts | None, *proofs: Proof) -> Ruling:
    rows = {} if facts is None else {DELIVERY: facts}
    return delivery.acknowledge(proofs or (proof(),), rows, subscription_id=SUBSCRIPTION)


def release(facts: Facts | None, *started: bool) -> Ruling:
    rows = {} if facts is None else {DELIVERY: facts}
    return delivery.release(
        [Released(proof=proof(), started=one) for one in started], rows, subscription_id=SUBSCRIPTION
    )


def words(ruling: Ruling) -> list[str]:
    """Disposition and code of each verdict, in order."""
    return [f"{one.disposition} {one.code}" if one.code else str(one.disposition) for one in ruling.verdicts]


# The whole table, written out: what is not a transition must not be in it.
NEXT = {
    #              PENDING  LEASED   ACKED EXPIRED
    Step.LEASE: (LEASED, None, None, None),
    Step.LAPSE: (None, PENDING, None, None),
    Step.EXPIRE: (None, EXPIRED, None, None),
    Step.ACKNOWLEDGE: (ACKED, ACKED, None, ACKED),
    Step.GIVE_BACK: (PENDING, PENDING, None, PENDING),
    Step.GRANT: (PENDING, LEASED, None, PENDING),
}


@pytest.mark.parametrize("step", list(Step))
def test_each_step_leads_from_each_state_where_the_design_says(step: Step) -> None:
    columns = (PENDING, LEASED, ACKED, EXPIRED)
    assert tuple(delivery.TRANSITIONS.get((state, step)) for state in columns) == NEXT[step]


@pytest.mark.parametrize(
    ("attempts", "budget", "step"),
    [(1, 2, Step.LAPSE), (2, 2, Step.EXPIRE), (3, 2, Step.EXPIRE), (1, 1, Step.EXPIRE), (9, 10, Step.LAPSE)],
)
def test_a_lease_that_is_over_expires_the_delivery_once_its_attempts_are_spent(
    attempts: int, budget: int, step: Step
) -> None:
    assert delivery.lease_over(attempts, budget) is step


@pytest.mark.parametrize(
    ("tried", "untried", "window", "in_window", "room", "chosen"),
    [
        # An empty window takes the oldest untried ones, as many as it has places.
        ([], [1, 2, 3], 2, 0, 10, (1, 2)),
        ([], [1, 2, 3], 64, 0, 10, (1, 2, 3)),
        # Room bounds it, whatever the window has.
        ([], [1, 2, 3], 64, 0, 2, (1, 2)),
        ([1, 2, 3], [], 64, 3, 2, (1, 2)),
        # A full window still lets those through that have their place in it.
        ([4, 5], [1, 2, 3], 2, 2, 10, (4, 5)),
        ([4], [5, 6], 1, 1, 10, (4,)),
        # Full of others (leased, expired): nothing new.
        ([], [1, 2], 2, 2, 10, ()),
        # More in the window than it holds: nothing new, no negative number of places.
        ([], [1, 2], 2, 5, 10, ()),
        ([3], [1, 2], 2, 5, 10, (3,)),
        # Oldest first across both lists.
        ([2, 6], [1, 3, 9], 4, 2, 10, (1, 2, 3, 6)),
        ([2, 6], [1, 3, 9], 4, 2, 3, (1, 2, 3)),
        ([9], [1, 2], 2, 1, 10, (1, 9)),
        # No room: nothing, not even what was tried.
        ([1], [2], 64, 1, 0, ()),
        ([1], [2], 64, 1, -3, ()),
    ],
)
def test_claimable_takes_the_oldest_that_window_and_room_allow(
    tried: list[int], untried: list[int], window: int, in_window: int, room: int, chosen: tuple[int, ...]
) -> None:
    assert delivery.claimable(tried, untried, window=window, in_window=in_window, room=room) == chosen


@pytest.mark.parametrize(
    ("facts", "given", "verdict", "changes"),
    [
        (LEASED_TWICE, proof(), "ACKED", True),
        # The lease ran out, nobody else was given it: the newest epoch counts.
        (LAPSED, proof(), "ACKED", True),
        (SPENT, proof(), "ACKED", True),
        # Answered before: the same receipt, no change.
        (DONE, proof(), "ACKED", False),
        # Somebody else was given it, whatever became of that.
        (LEASED_TWICE, proof(epoch=3), "REFUSED STALE_EPOCH", False),
        (LAPSED, proof(epoch=3), "REFUSED STALE_EPOCH", False),
        (SPENT, proof(epoch=3), "REFUSED STALE_EPOCH", False),
        (DONE, proof(epoch=3), "REFUSED STALE_EPOCH", False),
        (GIVEN_BACK, proof(epoch=3), "REFUSED STALE_EPOCH", False),
        (LEASED_TWICE, proof(epoch=3, secret=WRONG_SECRET), "REFUSED STALE_EPOCH", False),
        # Knowing the ids is not enough.
        (LEASED_TWICE, proof(secret=WRONG_SECRET), "REFUSED INVALID_PROOF", False),
        (DONE, proof(secret=WRONG_SECRET), "REFUSED INVALID_PROOF", False),
        (LEASED_TWICE, proof(epoch=5), "REFUSED INVALID_PROOF", False),
        (UNTOUCHED, proof(epoch=1), "REFUSED INVALID_PROOF", False),
        # It said that it had not started.
        (GIVEN_BACK, proof(), "REFUSED STATE_CONFLICT", False),
        # Not this subscription's, or nobody's: the same answer.
        (replace(LEASED_TWICE, subscription_id="6" * 32), proof(), "REFUSED NOT_FOUND", False),
        (replace(LEASED_TWICE, subscription_id="6" * 32), proof(epoch=3), "REFUSED NOT_FOUND", False),
        (None, proof(), "REFUSED NOT_FOUND", False),
    ],
)
def test_an_ack_counts_for_the_newest_epoch_with_its_secret(
    facts: Facts | None, given: Proof, verdict: str, changes: bool
) -> None:
    ruling = ack(facts, given)

    assert words(ruling) == [verdict]
    assert ruling.changed == ((7,) if changes else ())
    assert (ruling.verdicts[0].delivery_id, ruling.verdicts[0].epoch) == (given.delivery_id, given.epoch)


def test_the_receipt_of_an_ack_keeps_the_time_of_the_first_one() -> None:
    assert ack(LEASED_TWICE).verdicts[0].acked_at == NOW
    assert ack(DONE).verdicts[0].acked_at == EARLIER
    assert ack(GIVEN_BACK).verdicts[0].acked_at is None


@pytest.mark.parametrize(
    ("facts", "started", "verdict", "changes"),
    [
        # Not started: the attempt comes back, also when the lease has run out meanwhile.
        (LEASED_TWICE, False, "RELEASED", True),
        (LAPSED, False, "RELEASED", True),
        (SPENT, False, "RELEASED", True),
        # Sent again: the same answer, no second attempt.
        (GIVEN_BACK, False, "RELEASED", False),
        # Started: nothing changes here.
        (LEASED_TWICE, True, "RELEASED", False),
        (LAPSED, True, "RELEASED", False),
        (SPENT, True, "RELEASED", False),
        # What it said before cannot be unsaid.
        (GIVEN_BACK, True, "REFUSED STATE_CONFLICT", False),
        (DONE, False, "REFUSED STATE_CONFLICT", False),
        (DONE, True, "REFUSED STATE_CONFLICT", False),
        (UNTOUCHED, False, "REFUSED INVALID_PROOF", False),
        (replace(LEASED_TWICE, epoch=5), False, "REFUSED STALE_EPOCH", False),
        (replace(LEASED_TWICE, epoch=3), False, "REFUSED INVALID_PROOF", False),
        (replace(LEASED_TWICE, lease_secret_sha256="0" * 64), False, "REFUSED INVALID_PROOF", False),
        (replace(LEASED_TWICE, subscription_id="6" * 32), False, "REFUSED NOT_FOUND", False),
        (None, True, "REFUSED NOT_FOUND", False),
    ],
)
def test_a_release_gives_the_attempt_back_only_where_the_work_was_not_started(
    facts: Facts | None, started: bool, verdict: str, changes: bool
) -> None:
    ruling = release(facts, started)

    assert words(ruling) == [verdict]
    assert ruling.changed == ((7,) if changes else ())


def test_a_bad_proof_in_a_list_does_not_spoil_its_neighbours() -> None:
    rows = {DELIVERY: LEASED_TWICE, OTHER: replace(LEASED_TWICE, delivery_no=3)}
    proofs = [
        proof(secret=WRONG_SECRET),
        proof(delivery_id="a" * 32),
        proof(),
        proof(epoch=1, delivery_id=OTHER),
        proof(delivery_id=OTHER),
    ]

    ruling = delivery.acknowledge(proofs, rows, subscription_id=SUBSCRIPTION)

    assert words(ruling) == [
        "REFUSED INVALID_PROOF",
        "REFUSED NOT_FOUND",
        "ACKED",
        "REFUSED STALE_EPOCH",
        "ACKED",
    ]
    assert [one.delivery_id for one in ruling.verdicts] == [DELIVERY, "a" * 32, DELIVERY, OTHER, OTHER]
    assert ruling.changed == (3, 7)


def test_the_same_proof_twice_in_one_list_is_answered_twice_and_changes_once() -> None:
    twice = ack(LEASED_TWICE, proof(), proof())
    assert words(twice) == ["ACKED", "ACKED"]
    assert twice.verdicts[0] == twice.verdicts[1]
    assert twice.changed == (7,)

    back = release(LEASED_TWICE, False, False)
    assert words(back) == ["RELEASED", "RELEASED"]
    assert back.changed == (7,)


def test_a_list_that_contradicts_itself_goes_by_what_it_said_first() -> None:
    assert words(release(LEASED_TWICE, False, True)) == ["RELEASED", "REFUSED STATE_CONFLICT"]
    assert words(release(LEASED_TWICE, True, False)) == ["RELEASED", "RELEASED"]


@pytest.mark.parametrize(
    ("facts", "state", "budget"), [(SPENT, PENDING, 5), (LAPSED, PENDING, 5), (LEASED_TWICE, LEASED, 5)]
)
def test_a_grant_adds_attempts_and_makes_an_expired_delivery_deliverable(
    facts: Facts, state: DeliveryState, budget: int
) -> None:
    after = delivery.grant(facts, 2)

    assert (after.state, after.attempt_budget) == (state, budget)
    assert replace(after, state=facts.state, attempt_budget=facts.attempt_budget) == facts


def test_a_grant_to_an_acknowledged_delivery_is_a_conflict() -> None:
    with pytest.raises(ApiError) as refused:
        delivery.grant(DONE, 1)
    assert refused.value.code is ErrorCode.STATE_CONFLICT


def test_facts_and_rulings_do_not_show_what_a_lease_was_proved_with() -> None:
    assert SECRET_SHA256 not in repr(LEASED_TWICE)
    assert SECRET.reveal() not in repr(ack(LEASED_TWICE))

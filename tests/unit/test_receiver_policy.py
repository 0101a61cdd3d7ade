"""What follows which failure: the whole table, written by hand."""

from __future__ import annotations

import pytest

from orbit.mysql.errors import Kind
from receiver.policy import Again, Decision, GiveUp, Pause, after, call_budget

AMPLE = 1_000.0


def decide(kind: Kind, tries: int, *, left: float = AMPLE, lease: float = AMPLE, draining: bool = False) -> Decision:
    return after(kind, tries=tries, budget_left_s=left, lease_left_s=lease, draining=draining, jitter=0.0)


@pytest.mark.parametrize(
    ("kind", "decisions"),
    [
        (Kind.RETRY, [Again(0.025), Again(0.05), Again(0.1), Again(0.2), Again(0.4), Again(0.5), Again(0.5)]),
        (Kind.UNCONFIRMED, [Again(0.05), Again(0.1), Again(0.2), Again(0.4), Again(0.8), Again(1.0), Again(1.0)]),
        (Kind.RECONNECT, [Again(0.05), Again(0.1), Pause(), Pause()]),
        (Kind.BACK_OFF, [Pause(), Pause()]),
        (Kind.CONFIGURATION, [Pause(), Pause()]),
        (Kind.DEFECT, [Pause(), Pause()]),
        (Kind.DATA, [GiveUp(), GiveUp()]),
    ],
)
def test_each_kind_of_failure_has_its_row(kind: Kind, decisions: list[Decision]) -> None:
    assert [decide(kind, tries) for tries in range(1, len(decisions) + 1)] == decisions


def test_the_table_has_a_row_for_every_kind() -> None:
    for kind in Kind:
        assert decide(kind, 1) is not None


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("tries", [1, 2, 50])
def test_while_draining_nothing_is_tried_again(kind: Kind, tries: int) -> None:
    assert decide(kind, tries, draining=True) == GiveUp()


@pytest.mark.parametrize("kind", [Kind.RETRY, Kind.UNCONFIRMED])
@pytest.mark.parametrize(("left", "lease"), [(0.52, AMPLE), (AMPLE, 0.52), (0.0, AMPLE), (AMPLE, -3.0)])
def test_an_event_is_given_up_when_no_whole_try_fits_any_more(kind: Kind, left: float, lease: float) -> None:
    assert decide(kind, 1, left=left, lease=lease) == GiveUp()


def test_a_try_that_still_fits_is_made() -> None:
    assert decide(Kind.RETRY, 1, left=0.53, lease=0.53) == Again(0.025)


def test_a_lost_race_and_a_doubt_are_tried_for_as_long_as_the_lease_lasts() -> None:
    assert decide(Kind.RETRY, 10_000) == Again(0.5)
    assert decide(Kind.UNCONFIRMED, 10_000) == Again(1.0)


@pytest.mark.parametrize(("jitter", "delay_s"), [(0.0, 0.05), (0.5, 0.075), (0.99, 0.0995)])
def test_jitter_spreads_the_pause_over_its_upper_half(jitter: float, delay_s: float) -> None:
    decision = after(Kind.UNCONFIRMED, tries=1, budget_left_s=AMPLE, lease_left_s=AMPLE, draining=False, jitter=jitter)
    assert isinstance(decision, Again)
    assert decision.delay_s == pytest.approx(delay_s)


@pytest.mark.parametrize(
    ("left", "lease", "budget"), [(AMPLE, AMPLE, 5.0), (3.0, AMPLE, 3.0), (AMPLE, 2.0, 2.0), (4.0, 6.0, 4.0)]
)
def test_one_try_takes_at_most_five_seconds_and_stays_inside_lease_and_limit(
    left: float, lease: float, budget: float
) -> None:
    assert call_budget(budget_left_s=left, lease_left_s=lease) == budget

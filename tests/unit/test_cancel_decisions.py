"""What a wish to cancel does to a task: every state, with certain and with uncertain effects, written down by hand."""

from __future__ import annotations

import itertools

import pytest

from orbit.protocol.attempt_v1 import Decision
from orbit.protocol.errors import ApiError, ErrorCode
from orbit.protocol.event import RULES, Presence
from orbit.protocol.http_v1 import EventType, TaskState
from orbit.server.decide import cancel as decide
from orbit.server.decide.cancel import Wish
from orbit.server.decide.task import Change

ATTEMPT = "a" * 32
CONFLICT = ErrorCode.STATE_CONFLICT


def cancelled(attempt_id: str | None = None) -> Change:
    return Change(
        state=TaskState.CANCELLED, event_type=EventType.CANCELLED, cancel_requested=True, attempt_id=attempt_id
    )


def review(attempt_id: str | None = None) -> Change:
    """The uncertainty is left as it is: None changes nothing."""
    return Change(
        state=TaskState.NEEDS_REVIEW,
        event_type=EventType.NEEDS_REVIEW,
        error_code="CANCEL_REQUESTED",
        effect_uncertain=None,
        cancel_requested=True,
        decision=Decision.RECONCILIATION_REQUIRED,
        attempt_id=attempt_id,
    )


# (state, effect_uncertain): what the first wish does. A code: refused.
TABLE: dict[tuple[str, bool], Change | Wish | ErrorCode] = {
    ("WAITING", False): cancelled(),
    ("WAITING", True): review(),
    ("LEASED", False): cancelled(ATTEMPT),
    ("LEASED", True): review(ATTEMPT),
    ("RUNNING", False): Wish.STORED,
    ("RUNNING", True): Wish.STORED,
    ("NEEDS_REVIEW", True): Wish.STORED,
    ("CANCELLED", False): Wish.KNOWN,
    ("SUCCEEDED", False): CONFLICT,
    ("FAILED", False): CONFLICT,
    # States that no task has: an end without uncertainty, and a review without one.
    ("NEEDS_REVIEW", False): CONFLICT,
    ("CANCELLED", True): CONFLICT,
    ("SUCCEEDED", True): CONFLICT,
    ("FAILED", True): CONFLICT,
}


def test_the_table_names_every_situation() -> None:
    assert set(TABLE) == set(itertools.product([state.value for state in TaskState], [False, True]))


@pytest.mark.parametrize(("state", "uncertain"), TABLE)
def test_the_first_wish_does_what_the_table_says(state: str, uncertain: bool) -> None:
    expected = TABLE[state, uncertain]
    attempt_id = ATTEMPT if state == "LEASED" else None
    if isinstance(expected, ErrorCode):
        with pytest.raises(ApiError) as caught:
            decide.cancel(TaskState(state), effect_uncertain=uncertain, requested=False)
        assert caught.value.code is expected
    else:
        given = decide.cancel(TaskState(state), effect_uncertain=uncertain, requested=False, attempt_id=attempt_id)
        assert given == expected


@pytest.mark.parametrize(("state", "uncertain"), TABLE)
def test_every_further_wish_changes_nothing_whatever_became_of_the_task(state: str, uncertain: bool) -> None:
    found = decide.cancel(TaskState(state), effect_uncertain=uncertain, requested=True, attempt_id=ATTEMPT)
    assert found is Wish.KNOWN


def test_what_it_writes_fits_the_rules_of_events() -> None:
    for found in decide.CANCELLING.values():
        if isinstance(found, Change):
            rule = RULES[found.event_type.value]
            assert rule.state == found.state.value
            assert found.error_code is not None or rule.error_code is not Presence.REQUIRED

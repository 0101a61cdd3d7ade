"""What a person may do about a task, and what goes with it: tables written down by hand."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from orbit.protocol.errors import ApiError, ErrorCode, InvalidValue
from orbit.protocol.event import RULES, Presence
from orbit.protocol.http_v1 import EventType, ResolveTask, TaskState
from orbit.protocol.limits import Limits
from orbit.server.decide import recovery as decide
from orbit.server.decide.task import Change

LIMITS = Limits()
NOW = datetime(2026, 1, 31, 8, 15, 30)  # noqa: DTZ001 - as the database gives it


def said(outcome: str, **given: Any) -> ResolveTask:
    """A resolution as the web layer reads it."""
    content = {"outcome": outcome, "evidence": "ticket 4711", **given}
    return msgspec.json.decode(json.dumps(content).replace('"HUGE"', "1e10000"), type=ResolveTask)


RESOLVED = {
    "SUCCEEDED": (
        said("SUCCEEDED", result={"n": 1}),
        Change(state=TaskState.SUCCEEDED, event_type=EventType.SUCCEEDED, result='{"n":1}', effect_uncertain=False),
    ),
    "SUCCEEDED without result": (
        said("SUCCEEDED"),
        Change(state=TaskState.SUCCEEDED, event_type=EventType.SUCCEEDED, effect_uncertain=False),
    ),
    "FAILED": (
        said("FAILED", error_code="NEVER_HAPPENED"),
        Change(
            state=TaskState.FAILED, event_type=EventType.FAILED, error_code="NEVER_HAPPENED", effect_uncertain=False
        ),
    ),
    "CANCELLED": (
        said("CANCELLED"),
        Change(state=TaskState.CANCELLED, event_type=EventType.CANCELLED, effect_uncertain=False),
    ),
    "CANCELLED with a code": (
        said("CANCELLED", error_code="NOT_WANTED"),
        Change(
            state=TaskState.CANCELLED, event_type=EventType.CANCELLED, error_code="NOT_WANTED", effect_uncertain=False
        ),
    ),
}


@pytest.mark.parametrize("name", RESOLVED)
def test_a_persons_word_ends_the_review_and_makes_the_effect_certain(name: str) -> None:
    request, expected = RESOLVED[name]
    decide.check(request)
    change = decide.resolve(TaskState.NEEDS_REVIEW, request, decide.result(request, LIMITS))

    assert change == expected
    rule = RULES[change.event_type.value]
    assert rule.state == change.state.value
    assert (change.error_code is not None) or rule.error_code is not Presence.REQUIRED
    assert (change.error_code is None) or rule.error_code is not Presence.ABSENT
    assert (change.result is None) or rule.result is not Presence.ABSENT


@pytest.mark.parametrize("state", ["WAITING", "LEASED", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED"])
@pytest.mark.parametrize("name", RESOLVED)
def test_only_a_task_under_review_can_be_resolved(state: str, name: str) -> None:
    with pytest.raises(ApiError) as caught:
        decide.resolve(TaskState(state), RESOLVED[name][0], None)
    assert caught.value.code is ErrorCode.STATE_CONFLICT


RETRIED = {
    "WAITING": False,
    "LEASED": False,
    "RUNNING": False,
    "SUCCEEDED": False,
    "FAILED": True,
    "CANCELLED": True,
    "NEEDS_REVIEW": True,
}


@pytest.mark.parametrize("state", TaskState)
def test_what_may_be_done_again(state: TaskState) -> None:
    if RETRIED[state.value]:
        decide.retry(state)
        return
    with pytest.raises(ApiError) as caught:
        decide.retry(state)
    assert caught.value.code is ErrorCode.STATE_CONFLICT


@pytest.mark.parametrize(
    ("request_", "path"),
    [
        (said("FAILED"), "error_code"),
        (said("SUCCEEDED", error_code="CODE"), "error_code"),
        (said("FAILED", error_code="CODE", result=1), "result"),
        (said("CANCELLED", result={}), "result"),
    ],
    ids=["FAILED without a code", "SUCCEEDED with one", "FAILED with a result", "CANCELLED with one"],
)
def test_members_that_do_not_go_with_the_outcome_are_refused(request_: ResolveTask, path: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        decide.check(request_)
    assert caught.value.path == path


def nested(levels: int) -> Any:
    """Objects within objects; the innermost is empty."""
    value: Any = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "evidence",
    [None, 1, True, [], ["text"], "", {}, "x" * (64 * 1024 - 1), nested(29), {"n": "HUGE"}],
    ids=[
        "null",
        "number",
        "flag",
        "empty list",
        "list",
        "empty text",
        "nothing",
        "size",
        "nesting",
        "number too large",
    ],
)
def test_evidence_is_a_text_or_an_object_within_bounds(evidence: Any) -> None:
    with pytest.raises(InvalidValue) as caught:
        decide.evidence(said("CANCELLED", evidence=evidence), LIMITS)
    assert caught.value.path == "evidence"


@pytest.mark.parametrize(
    ("evidence", "text"),
    [
        ("ticket 4711", '"ticket 4711"'),
        ({"b": 1, "a": [None]}, '{"a":[null],"b":1}'),
        ("x" * (64 * 1024 - 2), '"' + "x" * (64 * 1024 - 2) + '"'),
        (nested(28), '{"a":' * 27 + "{}" + "}" * 27),
    ],
    ids=["text", "object", "size", "nesting"],
)
def test_evidence_is_kept_as_canonical_text(evidence: Any, text: str) -> None:
    assert decide.evidence(said("CANCELLED", evidence=evidence), LIMITS) == text


@pytest.mark.parametrize("result", [None, nested(29), "x" * 256 * 1024, {"n": "HUGE"}])
def test_a_persons_result_is_held_to_the_rules_of_a_workers(result: Any) -> None:
    request = said("SUCCEEDED", result=result)
    with pytest.raises(InvalidValue) as caught:
        decide.result(request, LIMITS)
    assert caught.value.path.startswith("result")


def test_a_latest_start_moves_with_the_submission() -> None:
    created_at = NOW - timedelta(days=2)
    assert decide.latest_start(NOW, created_at, None) is None
    assert decide.latest_start(NOW, created_at, created_at + timedelta(hours=1)) == NOW + timedelta(hours=1)
    assert decide.latest_start(NOW, created_at, created_at - timedelta(hours=1)) == NOW - timedelta(hours=1)


def test_a_latest_start_at_an_end_of_the_calendar_stays_there() -> None:
    first = datetime(1, 1, 1)  # noqa: DTZ001 - as the database gives it
    last = datetime(9999, 12, 31, 23, 59, 59, 999_999)  # noqa: DTZ001 - as the database gives it
    earlier = NOW - timedelta(days=1)
    assert decide.latest_start(NOW, earlier, last) == last
    assert decide.latest_start(earlier, NOW, first) == first

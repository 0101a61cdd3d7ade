"""The event: which members it must and must not have, its canonical text and its digest."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbit.protocol.errors import InvalidJSON, InvalidValue
from orbit.protocol.event import EVENT_TYPES, RESULT_EVENT_TYPES, RULES, STATE_OF, Event, Presence
from orbit.protocol.limits import Limits

ID = "0123456789abcdef0123456789abcdef"
QUEUE = "a" * 32
TASK = "b" * 32
ATTEMPT = "c" * 32

# Written by hand; the digest is sha256sum's.
GOLDEN_RECEIVED = """
{ "task_version" : "7", "state": "CANCELLED", "event_type": "task.cancelled",
  "event_id": "0123456789abcdef0123456789abcdef", "queue_id": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
  "task_id": "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb", "attempt_id": "cccccccccccccccccccccccccccccccc",
  "occurred_at": "2026-11-30T08:15:30.250000Z", "error_code": "CANCELLED_BY_CALLER",
  "result": { "n": 18446744073709551617.10 },
  "extra": { "b": "\\u4e2d", "a": [1.10, -0] } }
"""
GOLDEN_TEXT = (
    '{"attempt_id":"cccccccccccccccccccccccccccccccc","error_code":"CANCELLED_BY_CALLER",'
    '"event_id":"0123456789abcdef0123456789abcdef","event_type":"task.cancelled",'
    '"extra":{"a":[1.10,-0],"b":"中"},"occurred_at":"2026-11-30T08:15:30.25Z",'
    '"queue_id":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","result":{"n":18446744073709551617.10},'
    '"state":"CANCELLED","task_id":"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb","task_version":"7"}'
)
GOLDEN_SHA256 = "15d9415429309a69656275ddcc1bf4b187908a14958218dea715260be99a6576"


def members(event_type: str = "task.cancelled", /, **changes: Any) -> dict[str, Any]:
    """A valid event of the type, with `changes`; a change to ... removes the member."""
    event: dict[str, Any] = {
        "event_id": ID,
        "event_type": event_type,
        "queue_id": QUEUE,
        "task_id": TASK,
        "task_version": "7",
        "state": STATE_OF[event_type],
        "occurred_at": "2026-11-30T08:15:30Z",
    }
    if RULES[event_type].error_code is Presence.REQUIRED:
        event["error_code"] = "TIMED_OUT"
    event.update(changes)
    return {name: value for name, value in event.items() if value is not ...}


def parse(event: dict[str, Any], **limits: int) -> Event:
    return Event.parse(json.dumps(event).encode(), limits=Limits(**limits))


def test_golden_event() -> None:
    event = Event.parse(GOLDEN_RECEIVED.encode())
    assert event == Event(
        event_id=ID,
        event_type="task.cancelled",
        queue_id=QUEUE,
        task_id=TASK,
        task_version=7,
        state="CANCELLED",
        occurred_at=datetime(2026, 11, 30, 8, 15, 30, 250_000, tzinfo=UTC),
        result='{"n":18446744073709551617.10}',
        error_code="CANCELLED_BY_CALLER",
        attempt_id=ATTEMPT,
        decision=None,
        effect_uncertain=False,
        text=GOLDEN_TEXT,
        sha256=GOLDEN_SHA256,
    )
    assert Event.parse(GOLDEN_TEXT.encode()) == event


def test_the_types_and_their_states() -> None:
    assert dict(STATE_OF) == {
        "task.submitted": "WAITING",
        "task.leased": "LEASED",
        "task.started": "RUNNING",
        "task.requeued": "WAITING",
        "task.succeeded": "SUCCEEDED",
        "task.failed": "FAILED",
        "task.cancelled": "CANCELLED",
        "task.needs_review": "NEEDS_REVIEW",
    }
    assert frozenset(STATE_OF) == EVENT_TYPES
    assert {"task.succeeded", "task.failed", "task.cancelled", "task.needs_review"} == RESULT_EVENT_TYPES


R, O, A = "required", "optional", "absent"  # noqa: E741 - a table's marks


@pytest.mark.parametrize(
    ("event_type", "error_code", "result"),
    [
        ("task.submitted", A, A),
        ("task.leased", A, A),
        ("task.started", A, A),
        ("task.requeued", O, A),
        ("task.succeeded", A, O),
        ("task.failed", R, O),
        ("task.cancelled", O, O),
        ("task.needs_review", R, A),
    ],
)
def test_members_that_depend_on_the_type(event_type: str, error_code: str, result: str) -> None:
    for name, presence, value in (("error_code", error_code, "TIMED_OUT"), ("result", result, {"a": 1})):
        for present in (True, False):
            allowed = present if presence == R else (not present if presence == A else True)
            event = members(event_type, **{name: value if present else ...})
            if allowed:
                parsed = parse(event)
                assert (getattr(parsed, name) is not None) is present
            else:
                with pytest.raises(InvalidValue) as caught:
                    parse(event)
                assert caught.value.path == f"event.{name}"


@pytest.mark.parametrize(
    "name", ["event_id", "event_type", "queue_id", "task_id", "task_version", "state", "occurred_at"]
)
def test_a_missing_member_is_named(name: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse(members(**{name: ...}))
    assert (caught.value.path, caught.value.reason) == (f"event.{name}", "is required")


WRONG: dict[str, list[Any]] = {
    "event_id": [ID.upper(), ID + "0", ID[:-1], ID + "\n", 1, None],
    "queue_id": ["A" * 32],
    "task_id": ["", " " + "b" * 31],
    "event_type": ["task.exploded", "TASK.CANCELLED", None, ["task.failed"]],
    "state": ["SUCCEEDED", "cancelled", None, 7],
    "task_version": [7, "0", "-1", "07", "+7", "18446744073709551616", "7.0", "", "\u0667"],
    "occurred_at": [
        "2026-11-30T08:15:30",
        "2026-11-30 08:15:30Z",
        "2026-02-30T08:15:30Z",
        "2026-11-30T08:15:30+00:00",
        "2026-11-30T08:15:30.1234567Z",
        0,
    ],
    "result": [None],
    "attempt_id": [None, "x"],
    "error_code": ["", None, "a b", "x" * 65],
    "decision": ["", None, 1],
    "delay_ms": [0, -1, 1.0, "500", None, True, 2**31],
    "next_available_at": ["2026-11-30T08:15:30", "2026-02-30T08:15:30Z", 0, None],
    "attempt_count": [-1, 1.0, "1", None, False, 2**31],
    "max_attempts": [0, 3.0, "3", None, 2**31],
    "node": ["", "node a", None, "x" * 65],
    "effect_uncertain": [False, None, 1, "true"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in WRONG for value in WRONG[name]])
def test_a_wrong_member_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse(members(**{name: value}))
    assert caught.value.path == f"event.{name}"


@pytest.mark.parametrize("name", list(WRONG))
def test_a_refusal_never_quotes_the_value(name: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse(members(**{name: "hunter2 " * 9 if name != "result" else None}))
    assert "hunter2" not in str(caught.value) + repr(caught.value)


def test_every_optional_member_is_read() -> None:
    event = parse(
        members("task.needs_review", attempt_id=ATTEMPT, decision="RECONCILIATION_REQUIRED", effect_uncertain=True)
    )
    assert (event.attempt_id, event.decision, event.effect_uncertain) == (ATTEMPT, "RECONCILIATION_REQUIRED", True)
    assert event.error_code == "TIMED_OUT"
    assert event.result is None


def test_what_a_decision_about_retrying_is_told_with() -> None:
    event = parse(
        members(
            "task.requeued",
            occurred_at="2026-11-30T08:15:30.500Z",
            attempt_id=ATTEMPT,
            decision="UNSTARTED_LEASE_EXPIRED",
            delay_ms=1500,
            next_available_at="2026-11-30T08:15:32.000000Z",
            attempt_count=2,
            max_attempts=3,
            effect_uncertain=True,
            node="node-a.1",
        )
    )
    assert (event.decision, event.delay_ms, event.node) == ("UNSTARTED_LEASE_EXPIRED", 1500, "node-a.1")
    assert event.next_available_at == datetime(2026, 11, 30, 8, 15, 32, tzinfo=UTC)
    assert (event.attempt_count, event.max_attempts) == (2, 3)
    assert event.text == (
        '{"attempt_count":2,"attempt_id":"cccccccccccccccccccccccccccccccc","decision":"UNSTARTED_LEASE_EXPIRED",'
        '"delay_ms":1500,"effect_uncertain":true,"event_id":"0123456789abcdef0123456789abcdef",'
        '"event_type":"task.requeued","max_attempts":3,"next_available_at":"2026-11-30T08:15:32Z",'
        '"node":"node-a.1","occurred_at":"2026-11-30T08:15:30.5Z","queue_id":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",'
        '"state":"WAITING","task_id":"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb","task_version":"7"}'
    )
    assert event.sha256 == "5e6d32989abd9f6861f84fcdbc2dadcfc5da4441f8c6812a1877fc4e4046f51c"


def test_a_task_that_was_never_claimed_ends_with_no_attempt() -> None:
    event = parse(members(attempt_count=0, max_attempts=1))
    assert (event.attempt_count, event.max_attempts) == (0, 1)
    assert (event.delay_ms, event.next_available_at, event.node) == (None, None, None)


def test_the_largest_version_is_kept() -> None:
    assert parse(members(task_version="18446744073709551615")).task_version == 18446744073709551615


@pytest.mark.parametrize("result", ["false", "0", '""', "[]", "{}", "-0.0", "1e400", "1" * 5_000])
def test_a_result_is_any_json_but_null_and_keeps_its_text(result: str) -> None:
    data = json.dumps(members(result="@")).replace('"@"', result).encode()
    event = Event.parse(data)
    assert event.result == result
    assert f'"result":{result},' in event.text


@pytest.mark.parametrize("data", [b"null", b"[]", b'"task.cancelled"', b"1", b"true"])
def test_an_event_is_an_object(data: bytes) -> None:
    with pytest.raises(InvalidValue, match="event: must be an object"):
        Event.parse(data)


def test_order_blanks_and_escapes_do_not_change_the_digest_but_number_text_does() -> None:
    event = members(result={"a": 1, "b": "\u4e2d"})
    plain = parse(event)
    reordered = dict(reversed(list(event.items())))
    assert Event.parse(json.dumps(reordered, indent=2, ensure_ascii=False).encode()).sha256 == plain.sha256
    other = Event.parse(json.dumps(event).replace('"a": 1', '"a": 1.0').encode())
    assert other.sha256 != plain.sha256


def test_one_time_in_two_spellings_is_one_event() -> None:
    spellings = ["2026-11-30T08:15:30.5Z", "2026-11-30T08:15:30.50Z", "2026-11-30T08:15:30.500000Z"]
    assert len({parse(members(occurred_at=time)).sha256 for time in spellings}) == 1
    assert len({parse(members("task.requeued", next_available_at=time)).sha256 for time in spellings}) == 1
    # A time in a member that is not declared is text like any other.
    assert len({parse(members(expected_at=time)).sha256 for time in spellings}) == 3


def test_unknown_members_are_kept_and_digested() -> None:
    event = parse(members(waited_ms=500, later={"x": [None]}))
    assert '"waited_ms":500' in event.text
    assert '"later":{"x":[null]}' in event.text
    assert event.sha256 != parse(members()).sha256


def test_an_object_gives_the_same_event_as_its_bytes_and_is_left_alone() -> None:
    value = members("task.succeeded", result={"b": 1, "a": [True, None]}, occurred_at="2026-11-30T08:15:30.50Z")
    before = copy.deepcopy(value)
    assert Event.parse(value) == Event.parse(json.dumps(value).encode())
    assert value == before


def test_size_is_checked_on_the_bytes_received_and_on_canonical_text() -> None:
    data = json.dumps(members()).encode()
    padded = data + b" " * (1_000 - len(data))
    assert Event.parse(padded, limits=Limits(event_bytes=1_000)).task_version == 7
    with pytest.raises(InvalidJSON, match="larger than the limit"):
        Event.parse(padded + b" ", limits=Limits(event_bytes=1_000))
    text = Event.parse(data).text.encode()
    assert Event.parse(members(), limits=Limits(event_bytes=len(text))).task_version == 7
    with pytest.raises(InvalidValue, match=f"event: is larger than {len(text) - 1} bytes"):
        Event.parse(members(), limits=Limits(event_bytes=len(text) - 1))


def test_result_size_is_checked_in_bytes() -> None:
    # Two quotes and n characters of three bytes each.
    assert parse(members("task.succeeded", result="\u4e2d" * 10), result_bytes=32).result is not None
    with pytest.raises(InvalidValue, match=r"event\.result: is larger than 32 bytes"):
        parse(members("task.succeeded", result="\u4e2d" * 10 + "a"), result_bytes=32)


def test_nesting_is_bounded_for_bytes_and_objects_alike() -> None:
    def deep(levels: int) -> Any:
        value: Any = True
        for _ in range(levels):
            value = [value]
        return value

    assert Event.parse(members(extra=deep(31))).task_version == 7
    assert parse(members(extra=deep(31))).task_version == 7
    with pytest.raises(InvalidValue, match="event: nests more than 32 levels deep"):
        Event.parse(members(extra=deep(32)))
    with pytest.raises(InvalidJSON):
        parse(members(extra=deep(32)))


def test_half_of_a_surrogate_pair_is_refused_in_an_object_too() -> None:
    for event in (members(extra="\ud800"), members("task.succeeded", result={"\udc00": 1})):
        with pytest.raises(InvalidJSON, match="half of a surrogate pair"):
            Event.parse(event)
        with pytest.raises(InvalidJSON, match="half of a surrogate pair"):
            parse(event)


def test_the_repr_shows_no_content() -> None:
    event = parse(members("task.succeeded", result={"password": "hunter2"}, extra="hunter2", decision="HUNTER2"))
    shown = repr(event) + str(event)
    assert "hunter2" not in shown.lower()
    assert "password" not in shown
    assert ID in shown
    assert TASK in shown


def test_a_raw_member_of_an_object_is_kept_verbatim() -> None:
    assert Event.parse(members("task.succeeded", result=msgspec.Raw(b"1.10"))).result == "1.10"


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=8).map(lambda name: "x" + name), _json, max_size=4), _json)
def test_canonical_text_is_a_fixed_point(extra: dict[str, Any], result: Any) -> None:
    event = Event.parse(json.dumps({**extra, **members("task.succeeded", result=[result])}).encode())
    again = Event.parse(event.text.encode())
    assert again == event
    assert json.loads(event.text) == {**extra, **members("task.succeeded", result=[result])}

"""From event to rows: every value of both, and what is refused before SQL."""

from __future__ import annotations

import hashlib
import pickle
from typing import Any

import msgspec
import pytest

from orbit.protocol.event import Event
from receiver.outcome import Applied, EventConflict, InvalidEvent, Outcome, VersionConflict
from receiver.record import record_of

QUEUE = "a" * 32
EVENT = "b" * 32
TASK = "c" * 32


def event(**changes: Any) -> Event:
    members: dict[str, Any] = {
        "event_id": EVENT,
        "event_type": "task.succeeded",
        "queue_id": QUEUE,
        "task_id": TASK,
        "task_version": "4",
        "state": "SUCCEEDED",
        "occurred_at": "2026-01-31T08:15:30.250000Z",
        **changes,
    }
    return Event.parse(msgspec.json.encode({name: value for name, value in members.items() if value is not None}))


def test_an_event_becomes_the_values_of_both_rows() -> None:
    data = (
        b'{ "task_version":"18446744073709551615", "state":"SUCCEEDED", "event_type":"task.succeeded",'
        b'"event_id":"%s", "queue_id":"%s", "task_id":"%s", "occurred_at":"2026-01-31T08:15:30.250000Z",'
        b'"later":[1.10], "result":{"b":1.10,"a":18446744073709551617}}'
    ) % (EVENT.encode(), QUEUE.encode(), TASK.encode())
    record = record_of(Event.parse(data), consumer_name="Task-View", queue_id=QUEUE)
    text = (
        '{"event_id":"' + EVENT + '","event_type":"task.succeeded","later":[1.10],'
        '"occurred_at":"2026-01-31T08:15:30.25Z","queue_id":"' + QUEUE + '",'
        '"result":{"a":18446744073709551617,"b":1.10},"state":"SUCCEEDED",'
        '"task_id":"' + TASK + '","task_version":"18446744073709551615"}'
    )
    assert record.identity == {"consumer_name": "Task-View", "queue_id": QUEUE, "event_id": EVENT}
    assert record.inbox == {
        "consumer_name": "Task-View",
        "queue_id": QUEUE,
        "event_id": EVENT,
        "event": text,
        "event_sha256": hashlib.sha256(text.encode()).hexdigest(),
    }
    assert record.view == {
        "consumer_name": "Task-View",
        "queue_id": QUEUE,
        "task_id": TASK,
        "task_version": 18446744073709551615,
        "last_event_id": EVENT,
        "state": "SUCCEEDED",
        "result": '{"a":18446744073709551617,"b":1.10}',
    }


@pytest.mark.parametrize(
    ("event_type", "state", "error_code"),
    [
        ("task.succeeded", "SUCCEEDED", None),
        ("task.failed", "FAILED", "BAD_INPUT"),
        ("task.cancelled", "CANCELLED", None),
        ("task.needs_review", "NEEDS_REVIEW", "LOST"),
    ],
)
def test_each_type_of_result_event_keeps_its_state_and_has_no_result_unless_given(
    event_type: str, state: str, error_code: str | None
) -> None:
    given = event(event_type=event_type, state=state, error_code=error_code)
    record = record_of(given, consumer_name="v", queue_id=QUEUE)
    assert record.view["state"] == state
    assert record.view["result"] is None


@pytest.mark.parametrize(
    ("event_type", "state"),
    [
        ("task.submitted", "WAITING"),
        ("task.leased", "LEASED"),
        ("task.started", "RUNNING"),
        ("task.requeued", "WAITING"),
    ],
)
def test_events_that_report_no_result_are_refused(event_type: str, state: str) -> None:
    with pytest.raises(InvalidEvent, match="reports no result"):
        record_of(event(event_type=event_type, state=state), consumer_name="v", queue_id=QUEUE)


def test_an_event_of_another_queue_is_refused() -> None:
    with pytest.raises(InvalidEvent, match="another queue"):
        record_of(event(), consumer_name="v", queue_id="d" * 32)


def test_the_repr_shows_no_content() -> None:
    record = record_of(event(result={"hidden": 1}), consumer_name="v", queue_id=QUEUE)
    assert repr(record) == f"Record('{EVENT}')"


@pytest.mark.parametrize(
    ("applied", "outcome"),
    [
        (Applied(applied=True, duplicate=False), "applied"),
        (Applied(applied=False, duplicate=False), "stale"),
        (Applied(applied=True, duplicate=True), "duplicate"),
        (Applied(applied=False, duplicate=True), "duplicate"),
    ],
)
def test_what_an_event_in_the_inbox_is_called(applied: Applied, outcome: str) -> None:
    assert applied.outcome == outcome
    assert applied.outcome.acknowledged


def test_only_committed_events_are_acknowledged() -> None:
    assert {outcome.value for outcome in Outcome if outcome.acknowledged} == {"applied", "stale", "duplicate"}
    assert {outcome.value for outcome in Outcome if not outcome.acknowledged} == {
        "event_conflict",
        "version_conflict",
        "invalid",
        "unconfirmed",
        "unavailable",
    }


@pytest.mark.parametrize(
    ("error", "outcome", "text"),
    [
        (InvalidEvent("reports no result"), "invalid", "reports no result"),
        (EventConflict("e", "1" * 64, "2" * 64), "event_conflict", f"event e is recorded with digest {'1' * 64}"),
        (VersionConflict("e", "t", 7), "version_conflict", "version 7 of task t came from another event than e"),
    ],
)
def test_refusals_name_their_outcome_and_survive_pickling(
    error: InvalidEvent | EventConflict | VersionConflict, outcome: str, text: str
) -> None:
    assert error.outcome == outcome
    assert text in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)

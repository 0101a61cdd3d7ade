"""What may happen to a task, what a submit may hold and when two are the same, what an event's text is."""

from __future__ import annotations

import ast
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

import orbit.server.decide
from orbit.protocol import strict_json
from orbit.protocol.attempt_v1 import Decision
from orbit.protocol.errors import InvalidValue
from orbit.protocol.event import STATE_OF, Event
from orbit.protocol.http_v1 import EventType, SubmitTask, TaskState
from orbit.protocol.limits import Limits
from orbit.server.decide import event, submission
from orbit.server.decide import task as decide
from orbit.server.decide.task import Action, Change

QUEUE = "a" * 32


def submit(**given: Any) -> tuple[SubmitTask, strict_json.Value]:
    """A request and its parsed payload, as the web layer makes them from bytes."""
    payload = given.pop("payload", '{"a":1}')
    content = {"queue_id": QUEUE, "handler": "h", "handler_version": "1", "payload_version": "1", **given}
    text = json.dumps(content)[:-1] + f', "payload": {payload}}}'
    return msgspec.json.decode(text, type=SubmitTask), strict_json.parse(
        payload.encode(), max_bytes=2**20, max_depth=99
    )


def test_a_task_starts_to_wait() -> None:
    assert decide.submit() == Change(state=TaskState.WAITING, event_type=EventType.SUBMITTED)


def test_a_claim_spends_an_attempt_and_a_start_none() -> None:
    assert decide.claim("a" * 32) == Change(
        state=TaskState.LEASED, event_type=EventType.LEASED, claims=True, attempt_id="a" * 32
    )
    assert decide.start("a" * 32) == Change(state=TaskState.RUNNING, event_type=EventType.STARTED, attempt_id="a" * 32)


def test_the_table_of_changes_is_this_one_and_agrees_with_the_events_states() -> None:
    assert {key: change.state for key, change in decide.TRANSITIONS.items()} == {
        (None, Action.SUBMIT): TaskState.WAITING,
        (TaskState.WAITING, Action.CLAIM): TaskState.LEASED,
        (TaskState.LEASED, Action.START): TaskState.RUNNING,
    }
    for change in decide.TRANSITIONS.values():
        assert STATE_OF[change.event_type.value] == change.state.value


def test_a_state_that_waits_for_a_person_is_not_complete() -> None:
    assert {TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED} == decide.COMPLETED


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"retry": {"initial_delay_ms": 2, "max_delay_ms": 1}}, "retry.max_delay_ms"),
        ({"latest_start_at": "2030-02-30T00:00:00Z"}, "latest_start_at"),
        ({"latest_start_at": "2030-01-01T24:00:00Z"}, "latest_start_at"),
        ({"payload": "[" * 29 + "]" * 29}, "payload"),
        ({"payload": f'"{"x" * 496 * 1024}"'}, "payload"),
        ({"payload": "1e10000"}, "payload"),
        ({"payload": "9" * 5001}, "payload"),
    ],
    ids=["delays", "date", "hour", "nesting", "size", "exponent", "digits"],
)
def test_rules_beyond_types_name_the_member(given: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        submission.check(*submit(**given), Limits())
    assert caught.value.path == path


@pytest.mark.parametrize(
    "given",
    [
        {"retry": {"initial_delay_ms": 60_000}},
        {"task_timeout_ms": 100},
        {"task_timeout_ms": 100, "retry": {"attempt_timeout_ms": 86_400_000}},
        {"latest_start_at": "1970-01-01T00:00:00Z"},
        {"payload": "[" * 28 + "]" * 28},
        {"payload": f'"{"x" * (496 * 1024 - 2)}"'},
        {"payload": "1e-9999"},
        {"payload": "9" * 5000},
    ],
    ids=[
        "equal delays",
        "a short task",
        "attempt longer than task",
        "the past",
        "nesting",
        "size",
        "exponent",
        "digits",
    ],
)
def test_everything_up_to_the_bounds_is_a_task(given: dict[str, Any]) -> None:
    submission.check(*submit(**given), Limits())


def test_a_digest_is_that_of_the_canonical_content_with_its_defaults() -> None:
    # Written by hand and digested with sha256sum: digests are kept for ever, so this one must never change.
    # {"handler":"h","handler_version":"1","payload":{"a":1},"payload_version":"1","priority":0,"queue_id":"aaaaaaaa
    # aaaaaaaaaaaaaaaaaaaaaaaa","recovery_safety":"RECONCILE_ONLY","retry":{"attempt_timeout_ms":300000,
    # "initial_delay_ms":1000,"max_attempts":1,"max_delay_ms":60000},"task_timeout_ms":3600000}  without line breaks
    assert submission.digest(*submit()) == "4256c4a8c3e7dea426b4beff14362ea1b0fce7ed053d41c0a45336a5d5f691a1"


def test_a_digest_covers_what_is_optional_too() -> None:
    # The same, with "concurrency_key":"k" in first place and "latest_start_at":"2030-01-01T00:00:00.5Z" after
    # "handler_version".
    given = {"latest_start_at": "2030-01-01T00:00:00.500Z", "concurrency_key": "k"}
    assert submission.digest(*submit(**given)) == "c02ad1a39db62c85164c27ff9ec14c31c89f3d46080e163853436276bbe18d30"


def test_the_text_of_an_event_is_canonical_and_holds_what_applies() -> None:
    change = Change(
        state=TaskState.FAILED,
        event_type=EventType.FAILED,
        result='{"n":18446744073709551617.10}',
        error_code="REJECTED",
        effect_uncertain=True,
    )
    text = event.freeze(
        event_id="e" * 32,
        queue_id=QUEUE,
        task_id="c" * 32,
        task_version=18446744073709551615,
        occurred_at=datetime(2026, 1, 31, 8, 15, 30, 250000),  # noqa: DTZ001 - as the database gives it
        change=change,
        effect_uncertain=True,
        attempt_count=1,
        max_attempts=3,
    )

    assert text == (
        f'{{"effect_uncertain":true,"error_code":"REJECTED","event_id":"{"e" * 32}","event_type":"task.failed",'
        f'"occurred_at":"2026-01-31T08:15:30.25Z","queue_id":"{QUEUE}","result":{{"n":18446744073709551617.10}},'
        f'"state":"FAILED","task_id":"{"c" * 32}","task_version":"18446744073709551615"}}'
    )
    parsed = Event.parse(text.encode())
    assert parsed.text == text
    assert parsed.occurred_at == datetime(2026, 1, 31, 8, 15, 30, 250000, tzinfo=UTC)


def test_the_text_of_an_event_says_what_was_decided_about_an_attempt() -> None:
    change = Change(
        state=TaskState.WAITING,
        event_type=EventType.REQUEUED,
        attempt_id="a" * 32,
        decision=Decision.UNSTARTED_LEASE_EXPIRED,
        delay_ms=750,
        available_at=datetime(2026, 1, 31, 8, 15, 31),  # noqa: DTZ001 - as the database gives it
        node="host-1",
    )
    text = event.freeze(
        event_id="e" * 32,
        queue_id=QUEUE,
        task_id="c" * 32,
        task_version=4,
        occurred_at=datetime(2026, 1, 31, 8, 15, 30, 250000),  # noqa: DTZ001 - as the database gives it
        change=change,
        effect_uncertain=False,
        attempt_count=1,
        max_attempts=3,
    )

    assert text == (
        f'{{"attempt_count":1,"attempt_id":"{"a" * 32}","decision":"UNSTARTED_LEASE_EXPIRED","delay_ms":750,'
        f'"event_id":"{"e" * 32}","event_type":"task.requeued","max_attempts":3,'
        f'"next_available_at":"2026-01-31T08:15:31Z","node":"host-1","occurred_at":"2026-01-31T08:15:30.25Z",'
        f'"queue_id":"{QUEUE}","state":"WAITING","task_id":"{"c" * 32}","task_version":"4"}}'
    )
    assert Event.parse(text.encode()).text == text


def test_decisions_read_no_clock() -> None:
    """import-linter forbids the modules; this finds the clock of `datetime`, which decisions do import."""
    sources = list(Path(orbit.server.decide.__file__).parent.glob("*.py"))
    assert len(sources) >= 4
    clocks = [
        (source.name, node.lineno)
        for source in sources
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr in {"utcnow", "today", "now"}
        and "datetime" in ast.unparse(node)
    ]
    assert clocks == []

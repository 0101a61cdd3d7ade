"""What the platform pushes to a worker: one assignment is about one attempt, and names a task that can be done."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from orbit.protocol.assignment_v1 import AssignedTask, Assignment, Cancellation
from orbit.protocol.attempt_v1 import AttemptState
from orbit.protocol.errors import InvalidValue
from orbit.protocol.strict_json import canonical, parse
from tests.support.worker_conversations import LEASE_SECRET, assignment, cancellation, ident, task

TASK = {
    "task_id": ident(0x701),
    "queue_id": "a" * 32,
    "handler": "text.normalize",
    "handler_version": "v1",
    "payload_version": "v1",
    "payload": {"text": "  Hello Orbit  "},
    "attempt_number": 1,
    "max_attempts": 1,
    "attempt_timeout_ms": 300_000,
    "deadline_at": "2026-11-30T09:15:30.25Z",
}
EXTRAS = {
    "priority": 9,
    "effect_uncertain": True,
    "concurrency_key": "customer:42",
    "concurrency_token": "18446744073709551615",
    "retry_of": ident(0x700),
}


def read(kind: Any, members: dict[str, Any], *, lenient: bool = False) -> Any:
    """Parse a body as it comes from the wire; a member set to ... is left out."""
    present = {name: value for name, value in members.items() if value is not ...}
    return kind.parse(parse(json.dumps(present).encode(), max_bytes=2**20), lenient=lenient)


def refused(kind: Any, members: dict[str, Any], *, lenient: bool = False) -> str:
    """The path that the refusal names."""
    with pytest.raises(InvalidValue) as caught:
        read(kind, members, lenient=lenient)
    return caught.value.path


def test_a_task_is_read_and_written() -> None:
    plain = read(AssignedTask, TASK)
    assert (plain.priority, plain.effect_uncertain, plain.concurrency_key, plain.retry_of) == (0, False, None, None)
    assert plain.payload == {"text": "  Hello Orbit  "}
    assert plain.to_body() == TASK
    full = read(AssignedTask, TASK | EXTRAS)
    assert (full.concurrency_key, full.concurrency_token) == ("customer:42", 18446744073709551615)
    assert full.to_body() == TASK | EXTRAS


def test_what_says_nothing_is_not_written() -> None:
    assert read(AssignedTask, TASK | {"priority": 0, "effect_uncertain": False}).to_body() == TASK


@pytest.mark.parametrize("name", list(TASK))
def test_a_task_is_whole(name: str) -> None:
    assert refused(AssignedTask, {**TASK, name: ...}) == f"body.{name}"


@pytest.mark.parametrize(
    ("members", "path"),
    [
        ({"concurrency_key": ...}, "body.concurrency_token"),
        ({"concurrency_token": ...}, "body.concurrency_token"),
        ({"concurrency_token": None}, "body.concurrency_token"),
        ({"concurrency_token": "0"}, "body.concurrency_token"),
        ({"concurrency_key": None}, "body.concurrency_key"),
        ({"concurrency_key": "a b"}, "body.concurrency_key"),
        ({"priority": 10}, "body.priority"),
        ({"priority": True}, "body.priority"),
        ({"effect_uncertain": 1}, "body.effect_uncertain"),
        ({"retry_of": ident(0x701)}, "body.retry_of"),
        ({"retry_of": None}, "body.retry_of"),
        ({"attempt_number": 0}, "body.attempt_number"),
        ({"attempt_number": 1.0}, "body.attempt_number"),
        ({"attempt_timeout_ms": 2**31}, "body.attempt_timeout_ms"),
        ({"handler": ".x"}, "body.handler"),
        ({"handler_version": "v" * 65}, "body.handler_version"),
        ({"deadline_at": "2026-02-30T00:00:00Z"}, "body.deadline_at"),
    ],
)
def test_a_wrong_task_is_refused_by_name_also_by_a_client(members: dict[str, Any], path: str) -> None:
    whole = {**TASK, **EXTRAS, **members}
    assert refused(AssignedTask, whole) == path
    assert refused(AssignedTask, whole, lenient=True) == path


@pytest.mark.parametrize("payload", [None, False, 0, "", [], {"a": [None]}])
def test_a_payload_is_any_json(payload: Any) -> None:
    assert json.loads(canonical(read(AssignedTask, {**TASK, "payload": payload}).to_body()))["payload"] == payload


def test_the_stored_text_of_a_payload_travels_unchanged() -> None:
    sent = task(payload=msgspec.Raw(b'{"n": 1.10}'))
    assert b'"payload":{"n": 1.10}' in canonical(sent.to_body())


def test_an_assignment_is_read_and_written() -> None:
    sent = assignment()
    body = json.loads(canonical(sent.to_body()))
    received = read(Assignment, body)
    assert received.attempt == sent.attempt
    assert received.lease == sent.lease
    assert received.task == task(payload={"text": "  Hello Orbit  "})


@pytest.mark.parametrize(
    ("part", "members", "path"),
    [
        ("attempt", {"task_id": ident(9)}, "body.attempt.task_id"),
        ("lease", {"task_id": ident(9)}, "body.lease"),
        ("lease", {"attempt_id": ident(9)}, "body.lease"),
        ("lease", {"epoch": "2"}, "body.lease"),
        ("lease", {"state": AttemptState.RUNNING}, "body.lease.state"),
        ("lease", {"active": False}, "body.lease.state"),
    ],
)
def test_an_assignment_reserves_one_attempt(part: str, members: dict[str, Any], path: str) -> None:
    body = json.loads(canonical(assignment().to_body()))
    changed = {**body, part: {**body[part], **members}}
    assert refused(Assignment, changed) == path
    assert refused(Assignment, changed, lenient=True) == path


def test_a_client_ignores_what_a_newer_server_adds_at_every_depth() -> None:
    body = json.loads(canonical(assignment().to_body()))
    newer = {name: {**value, "newer": 1} for name, value in body.items()}
    assert read(Assignment, {**newer, "newer": 1}, lenient=True) == read(Assignment, body)
    assert refused(Assignment, newer) == "body.task"


def test_a_cancellation_is_read_and_written() -> None:
    sent = cancellation()
    assert read(Cancellation, sent.to_body()) == sent
    assert sent.identity == assignment().attempt.identity
    assert refused(Cancellation, {**sent.to_body(), "cancel_requested_at": ...}) == "body.cancel_requested_at"


def test_no_secret_and_no_payload_shows_in_a_repr() -> None:
    shown = repr(assignment(payload={"password": "hunter2"})) + str(assignment())
    assert LEASE_SECRET not in shown
    assert "hunter2" not in shown
    assert "Hello" not in shown
    assert ident(0x701) in shown

"""Proofs, leases, reports and receipts: what combines, what is refused by name, what shows in a repr."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from orbit.protocol.attempt_v1 import (
    RECEIPTS,
    Attempt,
    AttemptState,
    CommandResult,
    Decision,
    Disposition,
    Finish,
    Lease,
    Operation,
    Outcome,
    Receipt,
)
from orbit.protocol.errors import InvalidValue
from orbit.protocol.http_v1 import TaskState
from orbit.protocol.strict_json import canonical, parse
from tests.support.worker_conversations import (
    LEASE_SECRET,
    NOW,
    attempt,
    finished,
    granted,
    ident,
    lease,
    receipt,
    success,
)

PROOF = {"task_id": ident(0x701), "attempt_id": ident(0xA01), "epoch": "1", "lease_secret": LEASE_SECRET}
NAMED = {name: value for name, value in PROOF.items() if name != "lease_secret"}
AT = "2026-11-30T08:15:30.25Z"
UNTIL = "2026-11-30T08:16:00.25Z"
LEASE = {**NAMED, "state": "RUNNING", "active": True, "server_time": AT, "lease_until": UNTIL}
STARTED = {
    **NAMED,
    "operation": "start",
    "disposition": "APPLIED",
    "task_state": "RUNNING",
    "task_version": "3",
    "recorded_at": AT,
    "lease_until": UNTIL,
}
REPORTED = {
    **NAMED,
    "operation": "finish",
    "disposition": "APPLIED",
    "task_state": "WAITING",
    "task_version": "4",
    "recorded_at": AT,
    "decision": "RETRYABLE_FAILURE",
    "next_available_at": UNTIL,
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


# --- The words ---------------------------------------------------------------


def test_the_words_of_the_seed() -> None:
    assert list(Outcome) == ["SUCCEEDED", "FAILED", "UNKNOWN", "CANCELLED"]
    assert list(AttemptState) == ["LEASED", "RUNNING", "ENDED"]
    assert list(Disposition) == ["APPLIED", "EVIDENCE_ONLY"]
    assert list(Operation) == ["start", "renew", "finish"]
    assert list(Decision) == [
        "RETRYABLE_FAILURE", "IDEMPOTENT_UNKNOWN", "UNSTARTED_LEASE_EXPIRED",
        "ATTEMPT_LIMIT", "DEADLINE_EXCEEDED", "RECONCILIATION_REQUIRED",
    ]  # fmt: skip


# --- The proof ---------------------------------------------------------------


def test_a_proof_is_read_and_written() -> None:
    proof = read(Attempt, PROOF)
    assert proof == attempt()
    assert proof.identity == (ident(0x701), ident(0xA01), 1)
    assert proof.to_body() == PROOF


@pytest.mark.parametrize("name", list(PROOF))
def test_a_proof_is_whole(name: str) -> None:
    assert refused(Attempt, {**PROOF, name: ...}) == f"body.{name}"
    assert refused(Attempt, {**PROOF, name: None}) == f"body.{name}"
    assert refused(Attempt, {**PROOF, "more": 1}) == "body"


# --- The lease ---------------------------------------------------------------


def test_a_lease_is_read_and_written() -> None:
    cancelled = {**LEASE, "cancel_requested_at": AT}
    assert read(Lease, LEASE) == lease(attempt())
    assert read(Lease, cancelled) == lease(attempt(), cancel_requested_at=NOW)
    assert read(Lease, cancelled).to_body() == cancelled
    over = {**NAMED, "state": "ENDED", "active": False, "server_time": AT}
    assert read(Lease, over) == lease(attempt(), AttemptState.ENDED)
    assert read(Lease, over).to_body() == over


@pytest.mark.parametrize(
    ("members", "good"),
    [
        ({"state": "LEASED"}, True),
        ({"state": "ENDED"}, False),
        ({"lease_until": ...}, False),
        ({"active": False}, True),
        ({"active": False, "lease_until": ...}, True),
        ({"active": False, "state": "ENDED"}, True),
    ],
)
def test_an_active_lease_has_not_ended_and_has_an_end(members: dict[str, Any], good: bool) -> None:
    if good:
        read(Lease, {**LEASE, **members})
    else:
        assert refused(Lease, {**LEASE, **members}) == "body.active"
        assert refused(Lease, {**LEASE, **members}, lenient=True) == "body.active"


@pytest.mark.parametrize(
    ("name", "value"),
    [("state", "running"), ("state", None), ("active", 1), ("server_time", ...), ("lease_until", None), ("epoch", 1)],
)
def test_a_wrong_lease_is_refused_by_name(name: str, value: Any) -> None:
    assert refused(Lease, {**LEASE, name: value}) == f"body.{name}"


# --- The report --------------------------------------------------------------


def test_a_report_is_read_and_written() -> None:
    body: dict[str, Any] = {**PROOF, "outcome": "SUCCEEDED", "result": {"text": "HELLO ORBIT"}}
    report = read(Finish, body)
    assert report == success(attempt())
    assert json.loads(canonical(report.to_body())) == body

    body = {**PROOF, "outcome": "FAILED", "error_code": "TEMPORARY_REJECTION", "retryable": True, "result": [1]}
    report = read(Finish, body)
    assert (report.outcome, report.error_code, report.retryable) == ("FAILED", "TEMPORARY_REJECTION", True)
    assert report.result == "[1]"
    assert json.loads(canonical(report.to_body())) == body


def test_what_says_nothing_is_one_report_and_is_not_written() -> None:
    plain = read(Finish, {**PROOF, "outcome": "SUCCEEDED"})
    spelled = read(Finish, {**PROOF, "outcome": "SUCCEEDED", "error_code": "", "retryable": False})
    assert plain == spelled
    assert spelled.to_body() == {**PROOF, "outcome": "SUCCEEDED"}
    failed = {**PROOF, "outcome": "FAILED", "error_code": "X"}
    assert read(Finish, failed) == read(Finish, {**failed, "retryable": False})


def test_a_result_keeps_the_text_of_its_numbers() -> None:
    data = json.dumps({**PROOF, "outcome": "SUCCEEDED", "result": "@"}).replace('"@"', '{"n": 1.10, "m": 1e400}')
    report = Finish.parse(parse(data.encode(), max_bytes=1_000))
    assert report.result == '{"m":1e400,"n":1.10}'
    assert b'"result":{"m":1e400,"n":1.10}' in canonical(report.to_body())


@pytest.mark.parametrize(
    ("members", "path"),
    [
        ({"outcome": ...}, "body.outcome"),
        ({"outcome": "DONE"}, "body.outcome"),
        ({"result": None}, "body.result"),
        ({"error_code": "X"}, "body.error_code"),
        ({"error_code": None}, "body.error_code"),
        ({"retryable": True}, "body.retryable"),
        ({"retryable": None}, "body.retryable"),
        ({"outcome": "FAILED"}, "body.error_code"),
        ({"outcome": "UNKNOWN", "error_code": ""}, "body.error_code"),
        ({"outcome": "CANCELLED", "error_code": "timed out"}, "body.error_code"),
        ({"outcome": "FAILED", "error_code": "X" * 65}, "body.error_code"),
        ({"outcome": "UNKNOWN", "error_code": "X", "retryable": True}, "body.retryable"),
        ({"outcome": "CANCELLED", "error_code": "X", "retryable": True}, "body.retryable"),
        ({"outcome": "FAILED", "error_code": "X", "retryable": "true"}, "body.retryable"),
    ],
)
def test_a_wrong_report_is_refused_by_name(members: dict[str, Any], path: str) -> None:
    assert refused(Finish, {**PROOF, "outcome": "SUCCEEDED", **members}) == path


@pytest.mark.parametrize(
    "text", ["null", "{", '{"a":1,"a":1}', '"\\ud800"', "[" * 29 + "]" * 29, '"' + "x" * 262_143 + '"']
)
def test_a_worker_cannot_send_a_result_that_is_none(text: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        Finish.parse(success(attempt(), text).to_body())
    assert caught.value.path == "body.result"


# --- The receipt -------------------------------------------------------------


def test_receipts_are_read_and_written() -> None:
    start = read(Receipt, STARTED)
    assert start == receipt(attempt(), Operation.START, task_version=3)
    assert start.to_body() == STARTED
    report = read(Receipt, REPORTED)
    assert (report.task_state, report.decision) == (TaskState.WAITING, Decision.RETRYABLE_FAILURE)
    assert report.next_available_at == datetime(2026, 11, 30, 8, 16, 0, 250_000, tzinfo=UTC)
    assert report.to_body() == REPORTED


def test_the_table_of_receipts() -> None:
    assert {
        (str(one), str(two)): (set(extra.required), set(extra.optional)) for (one, two), extra in RECEIPTS.items()
    } == {
        ("start", "APPLIED"): ({"lease_until"}, set()),
        ("renew", "APPLIED"): ({"lease_until"}, set()),
        ("finish", "APPLIED"): (set(), {"decision", "next_available_at"}),
        ("finish", "EVIDENCE_ONLY"): (set(), set()),
    }


@pytest.mark.parametrize(
    ("members", "path"),
    [
        ({**STARTED, "disposition": "EVIDENCE_ONLY"}, "body.disposition"),
        ({**STARTED, "operation": "renew", "disposition": "EVIDENCE_ONLY"}, "body.disposition"),
        ({**STARTED, "lease_until": ...}, "body.lease_until"),
        ({**STARTED, "decision": "ATTEMPT_LIMIT"}, "body.decision"),
        ({**STARTED, "operation": "renew", "next_available_at": AT}, "body.next_available_at"),
        ({**REPORTED, "lease_until": UNTIL}, "body.lease_until"),
        ({**REPORTED, "disposition": "EVIDENCE_ONLY"}, "body.decision"),
        ({**REPORTED, "disposition": "EVIDENCE_ONLY", "decision": ...}, "body.next_available_at"),
        ({**REPORTED, "operation": "resume"}, "body.operation"),
        ({**REPORTED, "task_state": "DONE"}, "body.task_state"),
        ({**REPORTED, "task_version": 4}, "body.task_version"),
        ({**REPORTED, "decision": "because"}, "body.decision"),
        ({**REPORTED, "recorded_at": ...}, "body.recorded_at"),
    ],
)
def test_a_wrong_receipt_is_refused_by_name_also_by_a_client(members: dict[str, Any], path: str) -> None:
    assert refused(Receipt, members) == path
    assert refused(Receipt, members, lenient=True) == path


def test_a_receipt_may_name_a_decision_of_a_newer_server() -> None:
    assert read(Receipt, {**REPORTED, "decision": "OPERATOR_STOPPED_IT"}).decision == "OPERATOR_STOPPED_IT"


# --- What was recorded, and what holds now -----------------------------------


def test_a_result_keeps_history_and_present_apart() -> None:
    # An old start's receipt speaks of a lease in the future; the attempt has ended meanwhile.
    body = {"disposition": "APPLIED", "receipt": STARTED, "lease": {**LEASE, "state": "ENDED", "active": False}}
    result = read(CommandResult, body)
    assert result.receipt.lease_until == NOW + timedelta(seconds=30)
    assert (result.lease.state, result.lease.active) == (AttemptState.ENDED, False)
    assert result.to_body() == body


def test_a_result_is_about_one_attempt_and_one_disposition() -> None:
    body = granted(attempt(), Operation.START).to_body()
    assert read(CommandResult, body) == granted(attempt(), Operation.START)
    assert refused(CommandResult, {**body, "disposition": "EVIDENCE_ONLY"}) == "body.disposition"
    for name, value in (("task_id", ident(9)), ("attempt_id", ident(9)), ("epoch", "2")):
        assert refused(CommandResult, {**body, "lease": {**body["lease"], name: value}}) == "body.lease"
    evidence = finished(attempt(), Disposition.EVIDENCE_ONLY)
    assert read(CommandResult, evidence.to_body()) == evidence


def test_a_client_ignores_what_a_newer_server_adds_at_every_depth() -> None:
    body = finished(attempt()).to_body()
    newer = {name: {**value, "newer": 1} if isinstance(value, dict) else value for name, value in body.items()}
    assert read(CommandResult, {**newer, "newer": 1}, lenient=True) == finished(attempt())
    assert refused(CommandResult, newer) == "body.receipt"


def test_no_secret_and_no_result_shows_in_a_repr() -> None:
    report = success(attempt(), '{"password":"hunter2"}')
    for shown in (repr(report), str(report), f"{attempt()}", repr([report.attempt])):
        assert LEASE_SECRET not in shown
        assert "hunter2" not in shown
        assert ident(0xA01) in shown

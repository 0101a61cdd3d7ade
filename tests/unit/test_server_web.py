"""Pure parts of the web layer: what a failure means to the caller, and that the log never says more than it may."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from starlette.requests import ClientDisconnect
from structlog.testing import capture_logs

from orbit.mysql.errors import CommitUnconfirmed, Kind, NotCommitted, Stage
from orbit.protocol.errors import HTTP_STATUS, ApiError, ErrorCode, InvalidJSON, InvalidValue
from orbit.protocol.http_v1 import CancelTask, SubmitTask, Task
from orbit.server.web.endpoint import Endpoint
from orbit.server.web.errors import error_response, refusal
from orbit.server.web.routes import ENDPOINTS

WORKING = Stage.WORKING


@pytest.mark.parametrize(
    ("error", "code", "logged"),
    [
        (ApiError(ErrorCode.NOT_FOUND, "m"), ErrorCode.NOT_FOUND, 0),
        (InvalidValue("a", "b"), ErrorCode.INVALID_ARGUMENT, 0),
        (InvalidJSON(1, "b"), ErrorCode.INVALID_ARGUMENT, 0),
        (ClientDisconnect(), ErrorCode.INVALID_ARGUMENT, 0),
        (CommitUnconfirmed(2013, 7), ErrorCode.UNAVAILABLE, 1),
        (NotCommitted(1213, Kind.RETRY, WORKING), ErrorCode.UNAVAILABLE, 1),
        (NotCommitted(2003, Kind.RECONNECT, Stage.OPENING), ErrorCode.UNAVAILABLE, 1),
        (NotCommitted(1114, Kind.BACK_OFF, WORKING), ErrorCode.UNAVAILABLE, 1),
        (NotCommitted(1146, Kind.DEFECT, WORKING), ErrorCode.INTERNAL, 1),
        (NotCommitted(1406, Kind.DATA, WORKING), ErrorCode.INTERNAL, 1),
        (NotCommitted(1142, Kind.CONFIGURATION, WORKING), ErrorCode.INTERNAL, 1),
        (RuntimeError("my-secret"), ErrorCode.INTERNAL, 1),
    ],
    ids=str,
)
def test_every_failure_has_a_code_and_only_faults_of_ours_are_logged(
    error: Exception, code: ErrorCode, logged: int
) -> None:
    with capture_logs() as logs:
        refused = refusal(error, "r" * 32)

    assert refused.code is code
    assert len(logs) == logged
    assert all(line["request_id"] == "r" * 32 for line in logs)
    assert "my-secret" not in refused.message


def test_an_unknown_outcome_is_told_from_nothing_done() -> None:
    unknown = refusal(CommitUnconfirmed(None, 7), "r")
    nothing = refusal(NotCommitted(None, Kind.RECONNECT, WORKING), "r")

    assert "the outcome is unknown" in unknown.message
    assert "the same operation key settles it" in unknown.message
    assert "this request changed nothing" in nothing.message


@pytest.mark.parametrize("code", ErrorCode)
def test_a_refusal_has_one_shape(code: ErrorCode) -> None:
    response = error_response(ApiError(code, "m"), "r" * 32)

    assert response.status_code == HTTP_STATUS[code]
    assert json.loads(bytes(response.body)) == {"code": code.value, "message": "m", "request_id": "r" * 32}
    assert response.headers["X-Request-Id"] == "r" * 32
    assert ("WWW-Authenticate" in response.headers) is (code is ErrorCode.UNAUTHENTICATED)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda one: one.name)
def test_an_entry_of_the_table_is_consistent(endpoint: Endpoint) -> None:
    assert endpoint.path.startswith("/v1/")
    assert endpoint.creates <= endpoint.keyed
    assert (endpoint.request is None) is (endpoint.method == "GET")
    assert (ErrorCode.NOT_FOUND in endpoint.refusals) is ("{" in endpoint.path or endpoint.creates)
    assert (ErrorCode.IDEMPOTENCY_CONFLICT in endpoint.refusals) is endpoint.keyed
    assert len({one.name for one in ENDPOINTS}) == len({(one.method, one.path) for one in ENDPOINTS}) == len(ENDPOINTS)


def test_a_payload_is_in_no_repr() -> None:
    content = b'{"queue_id":"%s","handler":"h","handler_version":"1","payload_version":"1","payload":"my-secret"}'
    request = msgspec.json.decode(content % (b"a" * 32), type=SubmitTask)

    assert "my-secret" not in repr(request)
    assert "my-secret" not in repr(task(payload=msgspec.Raw(b'"my-secret"'), result=msgspec.Raw(b'"my-secret"')))


def test_what_does_not_apply_is_left_out_of_a_task() -> None:
    shown = json.loads(msgspec.json.encode(task()))

    assert "effect_uncertain" not in shown
    assert "priority" not in shown
    assert "result" not in shown
    assert json.loads(msgspec.json.encode(task(priority=3, effect_uncertain=True)))["priority"] == 3


def test_an_older_reader_ignores_what_a_newer_server_adds_and_the_server_does_not() -> None:
    newer = json.loads(msgspec.json.encode(task())) | {"added": 1}

    assert msgspec.json.decode(json.dumps(newer), type=Task).task_id == "c" * 32
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"added":1}', type=CancelTask)


def task(**given: Any) -> Task:
    """A task that waits, and `given`."""
    fields: dict[str, Any] = {
        "task_id": "c" * 32,
        "queue_id": "a" * 32,
        "handler": "h",
        "handler_version": "1",
        "payload_version": "1",
        "payload": msgspec.Raw(b"1"),
        "recovery_safety": "RECONCILE_ONLY",
        "task_timeout_ms": 100,
        "retry": {},
        "state": "WAITING",
        "version": "1",
        "attempt_count": 0,
        "created_at": "2026-01-31T08:15:30Z",
        "updated_at": "2026-01-31T08:15:30Z",
        "deadline_at": "2026-01-31T08:15:30Z",
    }
    return msgspec.json.decode(msgspec.json.encode(fields | given), type=Task)

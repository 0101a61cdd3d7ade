"""The SDK's errors: one tree, codes kept, other people's texts kept out."""

from __future__ import annotations

import json
import re

import pytest

from orbit.protocol.errors import ErrorCode
from orbit.sdk import errors
from orbit.sdk.errors import (
    Disconnected,
    HTTPError,
    InvalidConfiguration,
    InvalidRequest,
    InvalidResponse,
    OrbitError,
    ProtocolMismatch,
    Refused,
    SessionRefused,
    TransportError,
    Unavailable,
    WrongQueue,
    http_error,
)


def drawn() -> set[tuple[str, str]]:
    """Each error of the module's docstring with the one it hangs on."""
    assert errors.__doc__ is not None
    pairs, path = set(), ["OrbitError"]
    for line in errors.__doc__.splitlines():
        if match := re.match(r"    ((?:[│ ]   )*)[├└]── (\w+)", line):
            depth = len(match[1]) // 4 + 1
            path[depth:] = [match[2]]
            pairs.add((match[2], path[depth - 1]))
    return pairs


def test_the_tree_is_the_one_that_is_drawn() -> None:
    found = {
        (one.__name__, one.__bases__[0].__name__)
        for one in vars(errors).values()
        if isinstance(one, type) and issubclass(one, OrbitError) and one is not OrbitError
    }
    assert found == drawn()
    assert found >= {
        ("HTTPError", "Refused"),
        ("WorkerError", "SessionRefused"),
        ("TransportError", "OrbitError"),
        ("InvalidResponse", "TransportError"),
        ("Disconnected", "OrbitError"),
        ("NoAnswer", "Disconnected"),
        ("WorkerDisconnected", "Disconnected"),
        ("WorkerTimeout", "WorkerDisconnected"),
        ("ProtocolMismatch", "OrbitError"),
        ("WorkerProtocolError", "ProtocolMismatch"),
        ("NotSent", "OrbitError"),
        ("DuplicateMessage", "NotSent"),
        ("WorkerBusy", "NotSent"),
        ("WorkerClosed", "OrbitError"),
        ("WorkerBackpressure", "OrbitError"),
    }
    assert issubclass(InvalidConfiguration, ValueError)
    assert issubclass(InvalidRequest, ValueError)


def test_a_refusal_keeps_code_and_request_id_and_hides_the_sentence() -> None:
    body = {"code": "STATE_CONFLICT", "message": "the task is RUNNING", "request_id": "req-1", "more": 1}
    error = http_error(409, json.dumps(body).encode())
    assert isinstance(error, Refused)
    assert (error.status, error.code, error.request_id) == (409, "STATE_CONFLICT", "req-1")
    assert error.message == "the task is RUNNING"
    assert str(error) == "HTTP 409 STATE_CONFLICT request_id=req-1"
    assert "RUNNING" not in repr(error)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>502</html>",
        b"[]",
        b'{"code":"A"}',
        b'{"code":"A","code":"B","message":"","request_id":""}',
        b'{"code":1,"message":"","request_id":""}',
        b"\xff",
        b'{"code":"A","message":"' + b"x" * 16_384 + b'","request_id":"r"}',
    ],
)
def test_a_body_that_is_not_the_platforms_leaves_the_status(body: bytes) -> None:
    error = http_error(502, body)
    assert (error.status, error.code, error.request_id, error.message) == (502, None, None, None)
    assert str(error) == "HTTP 502"


def test_a_code_or_id_that_is_none_is_dropped() -> None:
    error = http_error(400, b'{"code":"drop table","message":"m","request_id":"a\\nb"}')
    assert (error.code, error.request_id) == (None, None)


@pytest.mark.parametrize(
    ("status", "temporary", "unknown"),
    [
        (301, False, False),
        (400, False, False),
        (401, False, False),
        (403, False, False),
        (404, False, False),
        (408, True, False),
        (409, False, False),
        (413, False, False),
        (425, True, False),
        (426, False, False),
        (429, True, False),
        (500, True, True),
        (502, True, True),
        (503, True, True),
        (504, True, True),
    ],
)
def test_what_a_status_means(status: int, temporary: bool, unknown: bool) -> None:
    error = HTTPError(status)
    assert (error.temporary, error.outcome_unknown) == (temporary, unknown)


def test_which_codes_on_the_socket_are_temporary() -> None:
    assert {code for code in ErrorCode if SessionRefused(code).temporary} == {
        "SESSION_FENCED",
        "RESOURCE_EXHAUSTED",
        "RATE_LIMITED",
        "UNAVAILABLE",
        "INTERNAL",
    }


def test_a_newer_servers_code_is_temporary() -> None:
    assert SessionRefused("BRAND_NEW").temporary
    assert str(SessionRefused("BRAND_NEW")) == "the session was refused: BRAND_NEW"


def test_the_others_say_what_happened() -> None:
    assert str(TransportError("no answer", outcome_unknown=True)) == "no answer; the outcome is unknown"
    assert str(TransportError("cannot connect", outcome_unknown=False)) == "cannot connect; nothing was sent"
    assert InvalidResponse("too large").outcome_unknown
    assert str(Disconnected("closed by the other end", 1012)) == "closed by the other end (close code 1012)"
    assert str(Disconnected("the connection was lost")) == "the connection was lost"
    assert str(WrongQueue("a", "b", "c")) == "subscription a is bound to queue b, configured is c"
    assert [error.temporary for error in (TransportError("", outcome_unknown=True), Disconnected(""), Unavailable())]
    assert not ProtocolMismatch("").temporary
    assert not WrongQueue("a", "b", "c").temporary

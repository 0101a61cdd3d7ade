"""What a worker's caller is told for each way in which a conversation can fail."""

from __future__ import annotations

import pytest

from orbit.protocol.errors import ErrorCode
from orbit.sdk.errors import (
    Disconnected,
    DuplicateMessage,
    HTTPError,
    InvalidRequest,
    NoAnswer,
    NotSent,
    OrbitError,
    ProtocolMismatch,
    SessionRefused,
    TransportError,
    WorkerBackpressure,
    WorkerBusy,
    WorkerClosed,
    WorkerDisconnected,
    WorkerError,
    WorkerProtocolError,
    WorkerTimeout,
)
from orbit.sdk.worker_errors import lost, worker_error


@pytest.mark.parametrize(
    ("raised", "kind", "says"),
    [
        (SessionRefused("STALE_EPOCH"), WorkerError, "the platform refused it: STALE_EPOCH"),
        (Disconnected("the connection was lost"), WorkerDisconnected, "the connection was lost"),
        (
            Disconnected("closed by the other end", 1012),
            WorkerDisconnected,
            "closed by the other end (close code 1012)",
        ),
        (Disconnected("closed by this end", 1009), WorkerProtocolError, "closed by this end (close code 1009)"),
        (Disconnected("a binary message", 1003), WorkerProtocolError, "a binary message (close code 1003)"),
        (Disconnected("closed by this end", 1007), WorkerProtocolError, "closed by this end (close code 1007)"),
        (
            Disconnected("closed by the other end", 1002),
            WorkerProtocolError,
            "closed by the other end (close code 1002)",
        ),
        (NoAnswer("no answer in time"), WorkerTimeout, "no answer in time"),
        (
            ProtocolMismatch("the server selected no subprotocol"),
            WorkerProtocolError,
            "the server selected no subprotocol",
        ),
        (NotSent("32 requests are in flight"), WorkerBusy, "32 requests are in flight"),
    ],
)
def test_a_conversations_error_becomes_the_workers(raised: OrbitError, kind: type[OrbitError], says: str) -> None:
    told = worker_error(raised)
    assert (type(told), str(told)) == (kind, says)


@pytest.mark.parametrize(
    "raised",
    [
        HTTPError(403, "PERMISSION_DENIED"),
        TransportError("cannot connect", outcome_unknown=False),
        InvalidRequest("result: must not be null"),
        DuplicateMessage("1" * 32),
        WorkerError("STATE_CONFLICT"),
        WorkerDisconnected("x", 1002),
        WorkerTimeout("x"),
        WorkerClosed("x"),
        WorkerBackpressure("x"),
        WorkerProtocolError("x"),
        WorkerBusy("x"),
    ],
)
def test_others_pass(raised: OrbitError) -> None:
    assert worker_error(raised) is raised


def test_the_end_of_a_session_is_no_refusal_of_what_was_in_flight() -> None:
    told = lost(SessionRefused("SESSION_FENCED"))
    assert (type(told), str(told)) == (WorkerDisconnected, "the platform ended the session: SESSION_FENCED")
    assert type(lost(Disconnected("the connection was lost"))) is WorkerDisconnected
    assert type(lost(WorkerClosed("closed by this end"))) is WorkerClosed


def test_a_timeout_is_one_and_no_operating_systems_error() -> None:
    error = WorkerTimeout("no answer in time")
    assert isinstance(error, TimeoutError)
    assert isinstance(error, WorkerDisconnected)
    assert (error.reason, error.close_code, error.errno, str(error)) == ("no answer in time", None, None, error.reason)


def test_what_is_temporary() -> None:
    again = [WorkerDisconnected("x"), WorkerTimeout("x"), WorkerBackpressure("x"), WorkerBusy("x"), NotSent("x")]
    assert all(error.temporary for error in again)
    assert not any(error.temporary for error in (WorkerClosed("x"), WorkerProtocolError("x")))
    assert {code for code in ErrorCode if WorkerError(code).temporary} == {
        "SESSION_FENCED",
        "RESOURCE_EXHAUSTED",
        "RATE_LIMITED",
        "UNAVAILABLE",
        "INTERNAL",
    }

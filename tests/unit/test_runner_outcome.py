"""What a handler did and what is reported of it; expected values written by hand from the seeds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from orbit.protocol.attempt_v1 import Outcome
from orbit.protocol.frame import parse_code
from orbit.protocol.limits import Limits
from orbit.sdk.handlers import InvalidPayload, StopReason, WorkerCancelled, WorkerFailure
from orbit.sdk.runner_outcome import (
    REASONS,
    Broke,
    Code,
    Failed,
    Returned,
    Withdrew,
    Word,
    judge,
    raised,
    returned,
    uncalled,
    unknown,
)

LIMITS = Limits()
DONE = Returned('{"n":1}')
FAILED = Failed("TEMPORARY_REJECTION", True, '{"ref":"x"}')
WITHDREW = Withdrew("CANCELLED", None)
RAISED = Broke(Code.HANDLER_RAISED, "KeyError")
CANCELLED = Broke(Code.HANDLER_CANCELLED)


@dataclass
class Point:
    x: float


class Row(msgspec.Struct):
    x: float


def evidence(text: str | None) -> dict[str, Any]:
    assert text is not None
    content: dict[str, Any] = json.loads(text)
    return content


@pytest.mark.parametrize(
    ("word", "stop", "asked", "outcome", "code"),
    [
        (DONE, None, False, "SUCCEEDED", None),
        (DONE, StopReason.CANCEL_REQUESTED, True, "SUCCEEDED", None),
        (DONE, StopReason.SHUTDOWN, False, "SUCCEEDED", None),
        (DONE, StopReason.DEADLINE, False, "UNKNOWN", "EXECUTION_DEADLINE"),
        (DONE, StopReason.LEASE_LOST, False, "UNKNOWN", "LEASE_LOST"),
        (FAILED, None, False, "FAILED", "TEMPORARY_REJECTION"),
        (FAILED, StopReason.CANCEL_REQUESTED, True, "FAILED", "TEMPORARY_REJECTION"),
        (FAILED, StopReason.DEADLINE, False, "UNKNOWN", "EXECUTION_DEADLINE"),
        (WITHDREW, StopReason.CANCEL_REQUESTED, True, "CANCELLED", "CANCELLED"),
        (WITHDREW, StopReason.SHUTDOWN, True, "CANCELLED", "CANCELLED"),
        (WITHDREW, None, False, "UNKNOWN", "CANCELLED_UNASKED"),
        (WITHDREW, StopReason.SHUTDOWN, False, "UNKNOWN", "CANCELLED_UNASKED"),
        (WITHDREW, StopReason.DEADLINE, True, "UNKNOWN", "EXECUTION_DEADLINE"),
        (RAISED, None, False, "UNKNOWN", "HANDLER_RAISED"),
        (RAISED, StopReason.CANCEL_REQUESTED, True, "UNKNOWN", "HANDLER_RAISED"),
        (RAISED, StopReason.LEASE_LOST, False, "UNKNOWN", "LEASE_LOST"),
        (CANCELLED, None, False, "UNKNOWN", "HANDLER_CANCELLED"),
        (CANCELLED, StopReason.CANCEL_REQUESTED, True, "UNKNOWN", "CANCELLED_UNCONFIRMED"),
        (CANCELLED, StopReason.SHUTDOWN, False, "UNKNOWN", "WORKER_STOPPED"),
        (CANCELLED, StopReason.DEADLINE, False, "UNKNOWN", "EXECUTION_DEADLINE"),
        (None, StopReason.DEADLINE, False, "UNKNOWN", "EXECUTION_DEADLINE"),
        (None, StopReason.LEASE_LOST, True, "UNKNOWN", "LEASE_LOST"),
        (None, StopReason.SHUTDOWN, False, "UNKNOWN", "WORKER_STOPPED"),
    ],
)
def test_every_end_of_a_handler_has_its_report(
    word: Word | None, stop: StopReason | None, asked: bool, outcome: str, code: str | None
) -> None:
    report = judge(word, stop, asked=asked)
    assert (report.outcome.value, report.error_code) == (outcome, code)
    assert report.retryable is (outcome == "FAILED")


def test_what_a_handler_says_is_reported_as_it_is() -> None:
    assert judge(DONE, None, asked=False).result == '{"n":1}'
    assert judge(FAILED, None, asked=False).result == '{"ref":"x"}'
    assert judge(Failed("BROKEN", False, None), None, asked=False).retryable is False


def test_what_came_too_late_is_kept_as_evidence() -> None:
    assert evidence(judge(DONE, StopReason.DEADLINE, asked=False).result) == {
        "reason": "the attempt's time was over before the handler ended",
        "late": "SUCCEEDED",
        "late_result": {"n": 1},
    }
    assert evidence(judge(FAILED, StopReason.LEASE_LOST, asked=False).result) == {
        "reason": "the lease was lost before the handler ended",
        "late": "FAILED",
        "late_result": {"ref": "x"},
    }
    assert evidence(judge(RAISED, StopReason.DEADLINE, asked=False).result) == {
        "reason": "the attempt's time was over before the handler ended",
        "late": "UNKNOWN",
        "exception": "KeyError",
    }


def test_late_evidence_that_cannot_be_wrapped_is_left_out() -> None:
    large = returned("x" * (256 * 1024 - 10), LIMITS)
    assert isinstance(large, Returned)
    assert set(evidence(judge(large, StopReason.DEADLINE, asked=False).result)) == {"reason", "late"}
    deep: Any = 1
    for _ in range(28):
        deep = [deep]
    nested = returned(deep, LIMITS)
    assert isinstance(nested, Returned)
    assert set(evidence(judge(nested, StopReason.DEADLINE, asked=False).result)) == {"reason", "late"}


def test_an_exceptions_class_is_reported_and_nothing_of_its_text() -> None:
    word = raised(ValueError("payload: 4711"), LIMITS)
    assert word == Broke(Code.HANDLER_RAISED, "ValueError")
    text = judge(word, None, asked=False).result
    assert evidence(text) == {"reason": "the handler raised an exception", "exception": "ValueError"}
    strange = type("Ä" * 300, (Exception,), {})
    named = raised(strange(), LIMITS)
    assert isinstance(named, Broke)
    assert named.exception is not None
    assert named.exception.isascii()
    assert len(named.exception) == 128


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SystemExit(3), "HANDLER_EXITED"),
        (KeyboardInterrupt(), "HANDLER_EXITED"),
        (GeneratorExit(), "HANDLER_EXITED"),
        (asyncio.CancelledError(), "HANDLER_CANCELLED"),
        (MemoryError(), "HANDLER_RAISED"),
        (TimeoutError(), "HANDLER_RAISED"),
        (BaseExceptionGroup("x", [KeyboardInterrupt()]), "HANDLER_RAISED"),
        (InvalidPayload("$.text"), "INVALID_PAYLOAD"),
    ],
)
def test_whatever_else_is_raised_leaves_the_outcome_open(error: BaseException, code: str) -> None:
    word = raised(error, LIMITS)
    assert isinstance(word, Broke)
    report = judge(word, None, asked=False)
    assert (report.outcome, report.error_code) == (Outcome.UNKNOWN, code)


def test_an_invalid_payload_names_the_place_and_not_the_value() -> None:
    assert evidence(judge(raised(InvalidPayload("$.items[...].n"), LIMITS), None, asked=False).result)["at"] == (
        "$.items[...].n"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        ({"text": "é", "a": [1, 1.5, None, True]}, '{"a":[1,1.5,null,true],"text":"é"}'),
        ("text", '"text"'),
        (0, "0"),
        (False, "false"),
        ([], "[]"),
        (Point(1.5), '{"x":1.5}'),
        (Row(2.0), '{"x":2.0}'),
        (msgspec.Raw(b'{"n": 1e2}'), '{"n":1e2}'),
        (Decimal("1.50"), '"1.50"'),
        (10**30, "1000000000000000000000000000000"),
        ({1: "a"}, '{"1":"a"}'),
    ],
)
def test_values_that_are_results(value: object, text: str | None) -> None:
    assert returned(value, LIMITS) == Returned(text)


def coroutine() -> Coroutine[Any, Any, int]:
    async def never_awaited() -> int:
        return 1

    return never_awaited()


def circle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (object, "INVALID_RESULT"),
        (lambda: {"a": float("nan")}, "INVALID_RESULT"),
        (lambda: [Point(float("inf"))], "INVALID_RESULT"),
        (lambda: (Row(float("-inf")),), "INVALID_RESULT"),
        (lambda: "\ud800", "INVALID_RESULT"),
        (circle, "INVALID_RESULT"),
        (lambda: {1: 1, "1": 2}, "INVALID_RESULT"),
        (lambda: msgspec.Raw(b"{"), "INVALID_RESULT"),
        (lambda: msgspec.Raw(b"null"), "INVALID_RESULT"),
        (lambda: msgspec.Raw(b"1e10000"), "INVALID_RESULT"),
        (coroutine, "INVALID_RESULT"),
        (lambda: "x" * 256 * 1024, "RESULT_TOO_LARGE"),
    ],
)
def test_values_that_are_none(make: Any, code: str) -> None:
    word = returned(make(), LIMITS)
    assert isinstance(word, Broke)
    assert word.code == code


def test_the_largest_result_is_one() -> None:
    assert returned("x" * (256 * 1024 - 2), LIMITS) == Returned('"' + "x" * (256 * 1024 - 2) + '"')


def test_a_handlers_own_words() -> None:
    assert raised(WorkerFailure("BUSY"), LIMITS) == Failed("BUSY", False, None)
    assert raised(WorkerFailure("BUSY", True, {"a": 1}), LIMITS) == Failed("BUSY", True, '{"a":1}')
    assert raised(WorkerCancelled(), LIMITS) == Withdrew("CANCELLED", None)
    assert raised(WorkerCancelled("ROLLED_BACK", [1]), LIMITS) == Withdrew("ROLLED_BACK", "[1]")
    assert raised(WorkerFailure("BUSY", details=object()), LIMITS) == Broke(Code.INVALID_RESULT, "TypeError")


@pytest.mark.parametrize("code", ["", "busy", "1BUSY", "BUSY!", "B" * 65])
def test_a_code_of_another_form_is_refused_where_it_is_made(code: str) -> None:
    for kind in (WorkerFailure, WorkerCancelled):
        with pytest.raises(ValueError, match=r"^code: "):
            kind(code)


def test_details_are_in_no_text_of_a_failure() -> None:
    failure = WorkerFailure("BUSY", details={"password": "hunter2"})
    assert "hunter2" not in f"{failure!r} {failure} {failure.args}"
    assert "hunter2" not in repr(raised(failure, LIMITS))
    assert "hunter2" not in repr(judge(raised(failure, LIMITS), None, asked=False))


def test_an_attempt_whose_handler_was_not_called() -> None:
    asked = uncalled(asked=True)
    assert (asked.outcome.value, asked.error_code) == ("CANCELLED", "CANCELLED_UNCALLED")
    late = uncalled(asked=False)
    assert (late.outcome.value, late.error_code) == ("UNKNOWN", "HANDLER_NOT_CALLED")


def test_every_code_is_a_code_of_the_wire_and_has_its_sentence() -> None:
    assert set(REASONS) == set(Code)
    for code in Code:
        assert parse_code(code.value, "code") == code.value
        assert evidence(unknown(code).result) == {"reason": REASONS[code]}

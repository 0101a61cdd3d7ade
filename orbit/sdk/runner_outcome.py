"""From what a handler did to what is reported of its attempt. Pure: no clock, no I/O.

| what the handler did                      | in time                              | after its time |
| ----------------------------------------- | ------------------------------------ | -------------- |
| returned a value that is a result         | SUCCEEDED                            | UNKNOWN        |
| returned something else                   | UNKNOWN                              | UNKNOWN        |
| raised WorkerFailure                      | FAILED                               | UNKNOWN        |
| raised WorkerCancelled, and was asked     | CANCELLED                            | UNKNOWN        |
| raised WorkerCancelled unasked            | UNKNOWN                              | UNKNOWN        |
| raised anything else, SystemExit included | UNKNOWN                              | UNKNOWN        |
| did not end                               |                                      | UNKNOWN        |

An UNKNOWN carries a stable code, and as its result the evidence: a fixed sentence, the exception's class where there
was one, and what came too late. An exception's text stays out, since it may quote the payload.
Sources: seeds safe-retry sections 2 and 4, worker-sdk section 5.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import msgspec

from orbit.protocol import strict_json
from orbit.protocol.attempt_v1 import Outcome
from orbit.protocol.errors import InvalidValue
from orbit.protocol.limits import Limits
from orbit.protocol.result import RESULT_BYTES_MAX, check_numbers, result_text
from orbit.sdk.handlers import InvalidPayload, StopReason, WorkerCancelled, WorkerFailure

CLASS_NAME_MAX: Final = 128
"""Characters of an exception's class name that are reported."""


class Code(StrEnum):
    """Every error code that the runner itself reports."""

    HANDLER_RAISED = "HANDLER_RAISED"
    HANDLER_EXITED = "HANDLER_EXITED"
    HANDLER_CANCELLED = "HANDLER_CANCELLED"
    HANDLER_NOT_CALLED = "HANDLER_NOT_CALLED"
    CANCELLED_UNCONFIRMED = "CANCELLED_UNCONFIRMED"
    CANCELLED_UNASKED = "CANCELLED_UNASKED"
    CANCELLED_UNCALLED = "CANCELLED_UNCALLED"
    EXECUTION_DEADLINE = "EXECUTION_DEADLINE"
    LEASE_LOST = "LEASE_LOST"
    WORKER_STOPPED = "WORKER_STOPPED"
    INVALID_PAYLOAD = "INVALID_PAYLOAD"
    INVALID_RESULT = "INVALID_RESULT"
    RESULT_TOO_LARGE = "RESULT_TOO_LARGE"


REASONS: Final[Mapping[Code, str]] = MappingProxyType(
    {
        Code.HANDLER_RAISED: "the handler raised an exception",
        Code.HANDLER_EXITED: "the handler asked for the process's end",
        Code.HANDLER_CANCELLED: "the handler was cancelled, and nobody had asked for that",
        Code.HANDLER_NOT_CALLED: "the handler was not called: its start was confirmed too late, or as the worker ended",
        Code.CANCELLED_UNCONFIRMED: "the handler was cancelled on request and did not say what it left",
        Code.CANCELLED_UNASKED: "the handler said that it was cancelled, and nobody had asked for that",
        Code.CANCELLED_UNCALLED: "the cancellation was asked for before the handler was called",
        Code.EXECUTION_DEADLINE: "the attempt's time was over before the handler ended",
        Code.LEASE_LOST: "the lease was lost before the handler ended",
        Code.WORKER_STOPPED: "the worker ended before the handler did",
        Code.INVALID_PAYLOAD: "the payload does not have the type that the handler takes, which was not called",
        Code.INVALID_RESULT: "what the handler returned is not JSON that a result may be",
        Code.RESULT_TOO_LARGE: f"what the handler returned is larger than {RESULT_BYTES_MAX} bytes",
    }
)

_STOPPED: Final[Mapping[StopReason, Code]] = MappingProxyType(
    {
        StopReason.CANCEL_REQUESTED: Code.CANCELLED_UNCONFIRMED,
        StopReason.DEADLINE: Code.EXECUTION_DEADLINE,
        StopReason.LEASE_LOST: Code.LEASE_LOST,
        StopReason.SHUTDOWN: Code.WORKER_STOPPED,
    }
)

TOO_LATE: Final = frozenset({StopReason.DEADLINE, StopReason.LEASE_LOST})
"""After these the attempt is no longer the handler's to decide."""


@dataclass(frozen=True, slots=True)
class Returned:
    """The handler returned; `result` is canonical JSON text, None for None."""

    result: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised WorkerFailure."""

    code: str
    retryable: bool
    details: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Withdrew:
    """The handler raised WorkerCancelled."""

    code: str
    details: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Broke:
    """The handler left open what it did; `exception` is a class name, `at` a path in the payload's type."""

    code: Code
    exception: str | None = None
    at: str | None = None


Word: TypeAlias = Returned | Failed | Withdrew | Broke
"""What a handler that has ended says."""

_SAYS: Final[Mapping[type[Word], Outcome]] = MappingProxyType(
    {Returned: Outcome.SUCCEEDED, Failed: Outcome.FAILED, Withdrew: Outcome.CANCELLED, Broke: Outcome.UNKNOWN}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What is said of an attempt; the content of a task.finish."""

    outcome: Outcome
    error_code: str | None = None
    retryable: bool = False
    result: str | None = field(default=None, repr=False)


def returned(value: object, limits: Limits) -> Word:
    """Read what a handler returned."""
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        return Broke(Code.INVALID_RESULT)
    text = _text(value, limits)
    return text if isinstance(text, Broke) else Returned(text)


def raised(error: BaseException, limits: Limits) -> Word:
    """Read what a handler raised."""
    match error:
        case WorkerFailure() | WorkerCancelled():
            return _own_word(error, limits)
        case InvalidPayload():
            return Broke(Code.INVALID_PAYLOAD, None, error.at)
        case asyncio.CancelledError():
            return Broke(Code.HANDLER_CANCELLED)
        case SystemExit() | KeyboardInterrupt() | GeneratorExit():
            return Broke(Code.HANDLER_EXITED, class_name(error))
        case _:
            return Broke(Code.HANDLER_RAISED, class_name(error))


def _own_word(error: WorkerFailure | WorkerCancelled, limits: Limits) -> Word:
    details = _text(error.details, limits)
    if isinstance(details, Broke):
        return details
    if isinstance(error, WorkerFailure):
        return Failed(error.code, bool(error.retryable), details)
    return Withdrew(error.code, details)


def class_name(error: BaseException) -> str:
    """The exception's class in printable ASCII; nothing of its text."""
    return ascii(type(error).__qualname__)[1:-1][:CLASS_NAME_MAX]


def judge(word: Word | None, stop: StopReason | None, *, asked: bool) -> Report:
    """Say what is reported. `word` is None for a handler that did not end; `stop` is what it was told last."""
    if word is None:
        assert stop is not None, "a handler that was not told to stop is waited for"
        return unknown(_STOPPED[stop])
    if stop in TOO_LATE:
        return _late(word, stop)
    match word:
        case Returned(result):
            report = Report(outcome=Outcome.SUCCEEDED, result=result)
        case Failed(code, retryable, details):
            report = Report(outcome=Outcome.FAILED, error_code=code, retryable=retryable, result=details)
        case Withdrew(code, details) if asked:
            report = Report(outcome=Outcome.CANCELLED, error_code=code, result=details)
        case Withdrew():
            report = unknown(Code.CANCELLED_UNASKED)
        case Broke(Code.HANDLER_CANCELLED) if stop is not None:
            report = unknown(_STOPPED[stop])
        case Broke(broken, exception, at):
            report = unknown(broken, exception=exception, at=at)
    return report


def uncalled(*, asked: bool) -> Report:
    """Say what is reported of an attempt that was started and whose handler was not called: nothing was done."""
    if asked:
        code = Code.CANCELLED_UNCALLED
        return Report(outcome=Outcome.CANCELLED, error_code=code, result=_evidence(code))
    return unknown(Code.HANDLER_NOT_CALLED)


def unknown(code: Code, **evidence: str | None) -> Report:
    """The report that nobody knows what the attempt has done."""
    return Report(outcome=Outcome.UNKNOWN, error_code=code, result=_evidence(code, **evidence))


def _late(word: Word, stop: StopReason | None) -> Report:
    assert stop is not None
    code = _STOPPED[stop]
    said: dict[str, Any] = {"late": _SAYS[type(word)].value}
    match word:
        case Returned(content) | Failed(_, _, content) | Withdrew(_, content):
            if content is not None:
                said["late_result"] = msgspec.Raw(content.encode())
        case Broke(_, exception, _):
            said["exception"] = exception
    text = _evidence(code, **said)
    try:
        text = result_text(text.encode())
    except InvalidValue:  # so large, or so deep, that it cannot be wrapped
        said.pop("late_result")
        text = _evidence(code, **said)
    return Report(outcome=Outcome.UNKNOWN, error_code=code, result=text)


def _evidence(code: Code, **more: Any) -> str:
    content = {"reason": REASONS[code], **{name: value for name, value in more.items() if value is not None}}
    return strict_json.canonical(content).decode()


def _text(value: object, limits: Limits) -> str | Broke | None:
    """Return a result's canonical text, None for None."""
    if value is None:
        return None
    try:
        data = msgspec.json.encode(value)
        if b"null" in data and not _finite(value):
            return Broke(Code.INVALID_RESULT)
        if len(data) > RESULT_BYTES_MAX:
            return Broke(Code.RESULT_TOO_LARGE)
        text = result_text(data)
        # The platform would refuse these numbers, and the report with them.
        check_numbers(text, limits)
    except Exception as error:  # noqa: BLE001 - an object of the caller's may do anything while it is read
        return Broke(Code.INVALID_RESULT, None if isinstance(error, InvalidValue) else class_name(error))
    return text


def _finite(value: object) -> bool:
    """Whether no NaN or infinity is in it: msgspec would write null for one."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_finite, value))
    if isinstance(value, msgspec.Struct):
        return all(_finite(getattr(value, name)) for name in value.__struct_fields__)
    if dataclasses.is_dataclass(value):
        return all(_finite(getattr(value, one.name)) for one in dataclasses.fields(value))
    return True

"""What a worker's handler is: how it is registered, what it is called with, and the words it may end with.

A handler returns its result, raises WorkerFailure for a failure that it can vouch for, or, when the task's
cancellation was asked for, WorkerCancelled. Whatever else happens in it leaves open what it has done, and is reported
so. Sources: seeds safe-retry section 4 and worker-sdk section 5.
"""

from __future__ import annotations

import functools
import inspect
import threading
import time
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeAlias

import msgspec

from orbit.protocol import strict_json
from orbit.protocol.errors import InvalidValue
from orbit.protocol.frame import parse_code
from orbit.protocol.strict_json import Value
from orbit.protocol.worker_v1 import Capability
from orbit.sdk.errors import InvalidConfiguration

SHAPE: Final = "a handler takes (payload) or (payload, context)"
TYPES: Final = "take plain JSON (no annotation, or Any), a dataclass, a TypedDict, a msgspec.Struct or msgspec.Raw"


class StopReason(StrEnum):
    """Why a handler is told to stop."""

    CANCEL_REQUESTED = "CANCEL_REQUESTED"
    """Somebody asked for the task's cancellation; the handler may say WorkerCancelled, or finish."""
    DEADLINE = "DEADLINE"
    """The attempt's time is over."""
    LEASE_LOST = "LEASE_LOST"
    """The platform may have given the task to another worker."""
    SHUTDOWN = "SHUTDOWN"
    """The worker ends."""


class WorkerFailure(Exception):
    """Raised by a handler that knows that its work failed, and how far it got: the only way to a FAILED attempt.

    `code` is a stable word of capital letters, digits and underscores. `retryable` says that trying again is safe,
    for instance because nothing was done; never say so of a timeout whose effect is unknown. `details` is JSON that is
    stored as the attempt's result. Raises ValueError for a code of another form.
    """

    def __init__(self, code: str, retryable: bool = False, details: Any = None) -> None:
        super().__init__(_code(code))
        self.code = code
        self.retryable = retryable
        self.details = details


class WorkerCancelled(Exception):
    """Raised by a handler that has stopped because of a cancel request and left no effect open.

    It counts only after `context.cancelled.requested`; a CancelledError that just passes is no such word. Raises
    ValueError for a code of another form than WorkerFailure's.
    """

    def __init__(self, code: str = "CANCELLED", details: Any = None) -> None:
        super().__init__(_code(code))
        self.code = code
        self.details = details


def _code(code: str) -> str:
    try:
        return parse_code(code, "code")
    except InvalidValue as error:
        raise ValueError(str(error)) from None


class Cancelled:
    """Tells a handler to stop; for any thread. An async handler is cancelled besides."""

    __slots__ = ("_event", "reason", "requested")

    def __init__(self) -> None:
        self._event = threading.Event()
        self.reason: StopReason | None = None
        """The newest reason; a deadline may follow a cancel request."""
        self.requested = False
        """Whether somebody asked for the task's cancellation."""

    def is_set(self) -> bool:
        """Whether the handler is to stop."""
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block the calling thread until the handler is to stop, `timeout` seconds at most; says whether it is."""
        return self._event.wait(timeout)

    def set(self, reason: StopReason) -> None:
        """Tell the handler; called by who runs it."""
        self.reason = reason
        self.requested = self.requested or reason is StopReason.CANCEL_REQUESTED
        self._event.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """What a handler may want to know besides its payload.

    `deadline` is the end of the attempt's time on `time.monotonic()`, a safety margin taken off. The lease may be lost
    before, when the platform is out of reach; `cancelled` tells. `attempt_number` counts from 1; `task_id` stays the
    same for all attempts and is the key for recognising what was done before. `effect_uncertain`: an earlier attempt
    may have had an effect that nobody has looked at. With a `concurrency_key`, the token grows from holder to holder:
    give it to the resource, which refuses an older one.
    """

    task_id: str
    attempt_id: str
    attempt_number: int
    max_attempts: int
    deadline: float
    effect_uncertain: bool = False
    concurrency_key: str | None = None
    concurrency_token: int | None = None
    retry_of: str | None = None
    cancelled: Cancelled = field(default_factory=Cancelled, repr=False, compare=False)
    clock: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)

    @property
    def remaining_s(self) -> float:
        """Seconds left of the attempt's time, 0 when it is over."""
        return max(0.0, self.deadline - self.clock())


AnyHandler: TypeAlias = Callable[[Any], object] | Callable[[Any, TaskContext], object]
"""A handler, async or not, of whichever payload and result."""


class InvalidPayload(Exception):
    """A payload that the handler's type does not take; `at` is the path of declared names, no content."""

    def __init__(self, at: str | None) -> None:
        super().__init__(at)
        self.at = at


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredHandler:
    """A function and how to call it."""

    capability: Capability
    function: Callable[..., Any]
    is_async: bool
    takes_context: bool
    payload: msgspec.json.Decoder[Any] = field(repr=False, compare=False)

    def __str__(self) -> str:
        of = self.capability
        return f"{of.handler}@{of.handler_version}"

    def arguments(self, payload: Value, context: TaskContext) -> tuple[Any, ...]:
        """Make the call's arguments of a payload as it came; raises InvalidPayload."""
        try:
            read = self.payload.decode(strict_json.canonical(payload))
        except msgspec.ValidationError as error:
            # "Expected `str`, got `int` - at `$.text`": all but the path may quote the payload.
            _, _, path = str(error).rpartition(" - at ")
            failure = InvalidPayload(path.strip("`") if path.startswith("`$") else None)
        else:
            return (read, context) if self.takes_context else (read,)
        raise failure


def register(function: AnyHandler, handler: str, version: str, payload_version: str) -> RegisteredHandler:
    """Look at a function once, at start-up; raises InvalidConfiguration, which says what to change."""
    names = {"handler": handler, "handler_version": version, "payload_version": payload_version}
    try:
        capability = Capability.parse(names, "handler")
    except InvalidValue as error:
        raise InvalidConfiguration(str(error)) from None
    if not callable(function):
        raise InvalidConfiguration(f"handler {handler}: {SHAPE}; a {type(function).__name__} cannot be called")
    called = _called(function)
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise InvalidConfiguration(f"handler {handler}: a handler returns one value; return it instead of yielding")
    parameters = _parameters(function, handler)
    hints = _hints(called, handler)
    takes_context = _takes_context(parameters, hints, handler)
    return RegisteredHandler(
        capability=capability,
        function=function,
        is_async=inspect.iscoroutinefunction(called),
        takes_context=takes_context,
        payload=_decoder(hints.get(parameters[0].name, Any), handler),
    )


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that will run: behind a partial, or an object's `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function):
        return function
    call: Callable[..., Any] = type(function).__call__
    return call


def _parameters(function: Callable[..., Any], handler: str) -> list[inspect.Parameter]:
    positional: list[inspect.Parameter] = []
    for one in inspect.signature(function).parameters.values():
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD):
            positional.append(one)
        elif one.kind is one.KEYWORD_ONLY and one.default is one.empty:
            raise InvalidConfiguration(f"handler {handler}: {SHAPE}; give {one.name} a default")
    required = [one for one in positional if one.default is one.empty]
    if not positional or len(required) > 2:
        raise InvalidConfiguration(f"handler {handler}: {SHAPE}, not {len(required)} arguments")
    return positional


def _hints(called: Callable[..., Any], handler: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(called)
    except NameError as error:
        raise InvalidConfiguration(
            f"handler {handler}: the annotation {error.name} cannot be found; define it at the module's top level, "
            f"and not under TYPE_CHECKING"
        ) from None
    except TypeError:
        return {}


def _takes_context(parameters: list[inspect.Parameter], hints: dict[str, Any], handler: str) -> bool:
    if len(parameters) < 2:
        return False
    second = parameters[1]
    hint = hints.get(second.name)
    if hint is TaskContext:
        return True
    if second.default is not second.empty:
        return False
    if hint is not None and hint is not Any:
        raise InvalidConfiguration(f"handler {handler}: {SHAPE}; annotate {second.name} as TaskContext")
    return True


def _decoder(hint: Any, handler: str) -> msgspec.json.Decoder[Any]:
    if hint is object:
        hint = Any
    try:
        information = msgspec.inspect.type_info(hint)
        unreadable = _unreadable(information, set())
        if unreadable is None:
            return msgspec.json.Decoder(hint)
    except TypeError as error:
        unreadable = str(error)
    raise InvalidConfiguration(
        f"handler {handler}: the payload's type cannot be read from JSON ({unreadable}); {TYPES}"
    )


def _unreadable(information: Any, seen: set[int]) -> str | None:
    """Name the first class in a type that JSON cannot be read into, None when there is none."""
    if isinstance(information, msgspec.inspect.CustomType):
        return f"{information.cls.__name__} is no type of data"
    if id(information) in seen or not isinstance(information, msgspec.inspect.Type | msgspec.inspect.Field):
        return None
    seen.add(id(information))
    for name in information.__struct_fields__:
        value = getattr(information, name)
        for part in value if isinstance(value, tuple) else (value,):
            if (found := _unreadable(part, seen)) is not None:
                return found
    return None

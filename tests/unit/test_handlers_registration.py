"""A function is looked at once, at start-up: what it takes, what its payload is read into, what is wrong with it."""

from __future__ import annotations

import functools
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec
import pytest

from orbit.protocol import strict_json
from orbit.sdk.errors import InvalidConfiguration
from orbit.sdk.handlers import Cancelled, InvalidPayload, StopReason, TaskContext, register
from orbit.sdk.runner import WorkerRunner

if TYPE_CHECKING:
    from decimal import Decimal  # for a handler whose annotation cannot be found


@dataclass
class Text:
    text: str
    times: int = 1


class Typed(TypedDict):
    text: str


class Model(msgspec.Struct):
    text: str


class Stranger:
    pass


CONTEXT = TaskContext(task_id="a" * 32, attempt_id="b" * 32, attempt_number=1, max_attempts=1, deadline=0.0)


def called(function: Any, payload: bytes = b'{"text":"a"}') -> tuple[Any, ...]:
    registered = register(function, "text.normalize", "v1", "v1")
    return registered.arguments(strict_json.parse(payload, max_bytes=10_000), CONTEXT)


def plain(payload): ...  # type: ignore[no-untyped-def]  # noqa: ANN001 - a handler without annotations


def any_json(payload: Any) -> None: ...
def an_object(payload: object) -> None: ...
def a_dataclass(payload: Text) -> None: ...
def a_typed_dict(payload: Typed) -> None: ...
def a_struct(payload: Model) -> None: ...
def a_dict(payload: dict[str, str]) -> None: ...
def exact(payload: msgspec.Raw) -> None: ...
def optional(payload: Text | None) -> None: ...
async def asynchronous(payload: Text) -> None: ...


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (plain, {"text": "a"}),
        (any_json, {"text": "a"}),
        (an_object, {"text": "a"}),
        (a_dataclass, Text("a")),
        (a_typed_dict, {"text": "a"}),
        (a_struct, Model("a")),
        (a_dict, {"text": "a"}),
        (exact, msgspec.Raw(b'{"text":"a"}')),
        (optional, Text("a")),
        (asynchronous, Text("a")),
        (functools.partial(a_dataclass), Text("a")),
    ],
)
def test_the_payload_is_read_into_the_annotated_type(function: Any, expected: Any) -> None:
    assert called(function) == (expected,)


def test_numbers_and_null() -> None:
    assert called(any_json, b"12345678901234567890123") == (12345678901234567890123,)
    assert called(exact, b"1.0") == (msgspec.Raw(b"1.0"),)
    assert called(any_json, b"null") == (None,)


@pytest.mark.parametrize(
    ("function", "payload", "at"),
    [
        (a_dataclass, b'{"text":4711}', "$.text"),
        (a_dataclass, b'"secret"', None),
        (a_dict, b'{"secret":1}', "$[...]"),
        (any_json, b"1e400", None),
    ],
)
def test_a_payload_of_another_type_says_where_and_nothing_of_the_content(
    function: Any, payload: bytes, at: str | None
) -> None:
    with pytest.raises(InvalidPayload) as caught:
        called(function, payload)
    assert caught.value.at == at
    assert "4711" not in repr(caught.value)
    assert "secret" not in repr(caught.value)
    assert caught.value.__context__ is None


def with_context(payload: Text, context: TaskContext) -> None: ...
def with_any_second(payload: Any, second) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001 - as above
def with_default_context(payload: Any, context: TaskContext | None = None) -> None: ...
def with_a_setting(payload: Any, retries: int = 3) -> None: ...
def with_keyword(payload: Any, *, retries: int = 3) -> None: ...
def with_defaulted_context(payload: Any, context: TaskContext = CONTEXT) -> None: ...


class Callable:
    async def __call__(self, payload: Text, context: TaskContext) -> None: ...

    def method(self, payload: Text, context: TaskContext) -> None: ...


@pytest.mark.parametrize(
    ("function", "takes", "is_async"),
    [
        (with_context, True, False),
        (with_any_second, True, False),
        (with_default_context, False, False),
        (with_a_setting, False, False),
        (with_keyword, False, False),
        (with_defaulted_context, True, False),
        (Callable(), True, True),
        (Callable().method, True, False),
        (asynchronous, False, True),
        (functools.partial(asynchronous), False, True),
    ],
)
def test_the_context_goes_to_who_asks_for_it(function: Any, takes: bool, is_async: bool) -> None:
    registered = register(function, "text.normalize", "v1", "v1")
    assert (registered.takes_context, registered.is_async) == (takes, is_async)
    assert called(function)[1:] == ((CONTEXT,) if takes else ())


def nothing() -> None: ...
def three(payload: Any, context: TaskContext, more: int) -> None: ...
def keyword(payload: Any, *, needed: int) -> None: ...
def other_second(payload: Any, context: int) -> None: ...
def stranger(payload: Stranger) -> None: ...
def nested_stranger(payload: dict[str, list[Stranger]]) -> None: ...
def unfound(payload: Decimal) -> None: ...


def generator(payload: Any) -> typing.Iterator[int]:
    yield 1


async def async_generator(payload: Any) -> typing.AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (nothing, "handler h: a handler takes (payload) or (payload, context), not 0 arguments"),
        (three, "handler h: a handler takes (payload) or (payload, context), not 3 arguments"),
        (keyword, "handler h: a handler takes (payload) or (payload, context); give needed a default"),
        (other_second, "handler h: a handler takes (payload) or (payload, context); annotate context as TaskContext"),
        (stranger, "Stranger is no type of data"),
        (nested_stranger, "take plain JSON (no annotation, or Any), a dataclass, a TypedDict, a msgspec.Struct"),
        (unfound, "the annotation Decimal cannot be found; define it at the module's top level"),
        (generator, "a handler returns one value; return it instead of yielding"),
        (async_generator, "a handler returns one value; return it instead of yielding"),
        (None, "a NoneType cannot be called"),
    ],
)
def test_what_is_no_handler_is_refused_with_what_to_do(function: Any, says: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        register(function, "h", "v1", "v1")
    assert says in str(caught.value)


@pytest.mark.parametrize(("handler", "version"), [("", "v1"), ("no spaces", "v1"), ("h" * 129, "v1"), ("h", "")])
def test_names_are_those_of_the_wire(handler: str, version: str) -> None:
    with pytest.raises(InvalidConfiguration, match=r"^handler\.handler"):
        register(any_json, handler, version, "v1")


def test_a_handler_is_registered_once_and_stays_what_it_was() -> None:
    runner = WorkerRunner()
    decorated = runner.handler("h", version="v1", payload_version="v1")(any_json)
    assert decorated is any_json
    runner.handler("h", version="v1", payload_version="v2")(any_json)
    with pytest.raises(InvalidConfiguration, match="is registered already"):
        runner.handler("h", version="v1", payload_version="v1")(plain)


@pytest.mark.parametrize("concurrency", [0, -1, 1_001])
def test_concurrency_has_its_range(concurrency: int) -> None:
    with pytest.raises(InvalidConfiguration, match="from 1 to 1000"):
        WorkerRunner(concurrency=concurrency)


def test_mypy_refuses_what_is_no_handler() -> None:
    """The checks are mypy's: with strict settings an `ignore` that is not needed is an error, too."""
    runner = WorkerRunner()
    decorate = runner.handler("typed", version="v1", payload_version="v1")
    with pytest.raises(InvalidConfiguration):
        decorate(three)  # type: ignore[type-var]  # three arguments
    with pytest.raises(InvalidConfiguration):
        decorate(nothing)  # type: ignore[type-var]  # none
    with pytest.raises(InvalidConfiguration):
        decorate(other_second)  # type: ignore[type-var]  # the second one is no context


def test_the_flag_remembers_a_cancel_request_under_a_later_reason() -> None:
    flag = Cancelled()
    assert (flag.is_set(), flag.wait(0), flag.reason, flag.requested) == (False, False, None, False)
    flag.set(StopReason.CANCEL_REQUESTED)
    flag.set(StopReason.DEADLINE)
    assert (flag.is_set(), flag.wait(), flag.reason, flag.requested) == (True, True, StopReason.DEADLINE, True)


def test_the_time_that_is_left() -> None:
    context = TaskContext(
        task_id="a" * 32, attempt_id="b" * 32, attempt_number=1, max_attempts=1, deadline=10.0, clock=lambda: 7.5
    )
    assert context.remaining_s == 2.5
    late = TaskContext(
        task_id="a" * 32, attempt_id="b" * 32, attempt_number=1, max_attempts=1, deadline=10.0, clock=lambda: 12.0
    )
    assert late.remaining_s == 0.0

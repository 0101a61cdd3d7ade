"""The vocabulary of workers in both sessions: who may say what when, and which answer fits which question."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbit.protocol import worker_v1
from orbit.protocol.attempt_v1 import Disposition, Operation
from orbit.protocol.errors import ErrorCode, InvalidValue
from orbit.protocol.frame import ACK
from orbit.protocol.limits import Limits
from orbit.protocol.phases import Phase
from orbit.protocol.session import ClientSession, Ended, Hello, Invalid, Push, Refused, Requested, ServerSession
from orbit.protocol.session_end import DuplicateRequest, NotOpen, SessionBusy, UnexpectedFrame
from orbit.protocol.strict_json import canonical, parse
from orbit.protocol.values import Secret
from tests.support.worker_conversations import (
    INSTANCE_SECRET,
    NORMALIZE,
    SESSION,
    WorkerPair,
    answer_to,
    assignment,
    attempt,
    cancellation,
    capacity,
    finished,
    granted,
    hello,
    ident,
    lease,
    success,
    welcome,
)


def read(kind: Any, members: dict[str, Any]) -> Any:
    """Parse a body as it comes from the wire; a member set to ... is left out."""
    present = {name: value for name, value in members.items() if value is not ...}
    return kind.parse(parse(json.dumps(present).encode(), max_bytes=2**20))


def refused(kind: Any, members: dict[str, Any]) -> str:
    """The path that the refusal names."""
    with pytest.raises(InvalidValue) as caught:
        read(kind, members)
    return caught.value.path


# --- Bodies ------------------------------------------------------------------


HELLO = hello().to_body()


def test_a_hello_is_read_and_written() -> None:
    assert read(worker_v1.Hello, HELLO) == hello()
    plain = hello(cancellation_notifications=False, concurrency_keys=False)
    assert plain.to_body().keys() == {"instance_id", "instance_secret", "queue_id", "capacity", "capabilities"}
    assert read(worker_v1.Hello, plain.to_body()) == plain


@pytest.mark.parametrize(
    ("members", "path"),
    [
        ({"capacity": 0}, "body.capacity"),
        ({"capacity": 1_001}, "body.capacity"),
        ({"capacity": 1.0}, "body.capacity"),
        ({"capacity": True}, "body.capacity"),
        ({"instance_secret": INSTANCE_SECRET[:-1] + "9"}, "body.instance_secret"),
        ({"capabilities": []}, "body.capabilities"),
        (
            {"capabilities": [{**NORMALIZE.to_body(), "handler": f"h{number}"} for number in range(65)]},
            "body.capabilities",
        ),
        ({"capabilities": [NORMALIZE.to_body()] * 2}, "body.capabilities"),
        ({"capabilities": [NORMALIZE.to_body(), {**NORMALIZE.to_body(), "Handler": "x"}]}, "body.capabilities[1]"),
        ({"capabilities": [{"handler": "x", "handler_version": "v1"}]}, "body.capabilities[0].payload_version"),
        ({"capabilities": {"0": NORMALIZE.to_body()}}, "body.capabilities"),
        ({"cancellation_notifications": None}, "body.cancellation_notifications"),
        ({"concurrency_keys": 1}, "body.concurrency_keys"),
        ({"Queue_Id": "a" * 32}, "body"),
        ({"queue_id": ...}, "body.queue_id"),
    ],
)
def test_a_wrong_hello_is_refused_by_name(members: dict[str, Any], path: str) -> None:
    assert refused(worker_v1.Hello, {**HELLO, **members}) == path


def test_as_many_capabilities_as_there_may_be() -> None:
    many = tuple(replace(NORMALIZE, handler=f"h{number}") for number in range(64))
    assert read(worker_v1.Hello, hello(capabilities=many).to_body()).capabilities == many


@pytest.mark.parametrize(
    ("members", "path"),
    [
        ({"capacity": -1}, "body.capacity"),
        ({"capacity": 1_001}, "body.capacity"),
        ({"capacity": ...}, "body.capacity"),
        ({"drain": ...}, "body.drain"),
        ({"drain": 0}, "body.drain"),
        ({"sequence": 1}, "body.sequence"),
        ({"sequence": "01"}, "body.sequence"),
        ({"sequence": "18446744073709551616"}, "body.sequence"),
    ],
)
def test_a_wrong_capacity_is_refused_by_name(members: dict[str, Any], path: str) -> None:
    assert refused(worker_v1.Capacity, {**capacity(1).to_body(), **members}) == path


@pytest.mark.parametrize("body", [capacity(1, 0), capacity(2**64 - 1, 1_000, drain=True)])
def test_a_capacity_is_read_and_written(body: worker_v1.Capacity) -> None:
    assert read(worker_v1.Capacity, body.to_body()) == body


@pytest.mark.parametrize("body", [welcome(), welcome(7, 1_000, drain=True)])
def test_a_welcome_is_read_and_written(body: worker_v1.Welcome) -> None:
    assert read(worker_v1.Welcome, body.to_body()) == body


@given(st.integers(1, 1_000), st.booleans(), st.booleans(), st.sets(st.sampled_from("abcdefgh"), min_size=1))
def test_whatever_a_worker_registers_is_read_back(
    room: int, notifications: bool, keys: bool, handlers: set[str]
) -> None:
    body = hello(
        instance_secret=Secret.new(),
        capacity=room,
        capabilities=tuple(replace(NORMALIZE, handler=handler) for handler in sorted(handlers)),
        cancellation_notifications=notifications,
        concurrency_keys=keys,
    )
    assert read(worker_v1.Hello, body.to_body()) == body


# --- Conversations -----------------------------------------------------------


def test_a_worker_takes_a_task_and_reports() -> None:
    pair = WorkerPair().opened()
    pushed = pair.client.receive(pair.server.push("task.assign", assignment(), ident(9)))
    assert isinstance(pushed, Push)
    assert pushed.body.attempt == attempt()
    for number, name in enumerate(("worker.resume", "task.start", "task.renew"), start=1):
        body = pair.exchange(name, attempt(), ident(number))
        assert (body if name == "worker.resume" else body.lease) == lease(attempt())
    assert pair.exchange("task.finish", success(attempt()), ident(4)) == finished(attempt())
    assert pair.client.in_flight == pair.server.in_flight == 0


def test_what_was_in_flight_can_be_settled_before_the_first_capacity() -> None:
    pair = WorkerPair().greeted()
    assert pair.exchange("worker.resume", attempt(), ident(1)) == lease(attempt())
    late = finished(attempt(), Disposition.EVIDENCE_ONLY)
    assert pair.exchange("task.finish", success(attempt()), ident(2), late) == late
    assert pair.client.phase is Phase.READY
    with pytest.raises(NotOpen):
        pair.server.push("task.assign", assignment(), ident(3))


def test_a_task_is_cancelled_by_a_push_of_its_own() -> None:
    pair = WorkerPair().opened()
    pushed = pair.client.receive(pair.server.push("task.cancel", cancellation(), ident(9)))
    assert isinstance(pushed, Push)
    assert pushed.body.identity == attempt().identity
    frame = json.loads(pair.server.push("task.cancel", cancellation(), ident(10)))
    assert "reply_to" not in frame


def test_an_old_session_is_told_that_it_is_over() -> None:
    pair = WorkerPair().opened()
    pair.client.request("task.renew", attempt(), ident(1))
    fenced = pair.server.fatal(ErrorCode.SESSION_FENCED, "a newer session of this instance has begun")
    assert pair.client.receive(fenced) == Ended("SESSION_FENCED", "a newer session of this instance has begun")
    assert pair.client.lost() == (ident(1),)


def test_a_start_may_be_refused_and_asked_again() -> None:
    pair = WorkerPair().opened()
    pair.server.receive(pair.client.request("task.start", attempt(), ident(1)))
    refusal = pair.server.refuse(ident(1), ErrorCode.RATE_LIMITED, "the queue's window is full")
    assert pair.client.receive(refusal) == Refused(ident(1), "task.start", "RATE_LIMITED", "the queue's window is full")
    assert pair.exchange("task.start", attempt(), ident(1)) == granted(attempt(), Operation.START)


def test_thirty_two_requests_of_any_kind_are_in_flight_and_none_twice() -> None:
    pair = WorkerPair().opened()
    names = ("task.start", "task.renew", "worker.resume")
    for number in range(32):
        pair.client.request(names[number % 3], attempt(number), ident(number))
    with pytest.raises(SessionBusy):
        pair.client.request("worker.capacity", capacity(2), ident(99))
    with pytest.raises(DuplicateRequest):
        pair.client.request("task.renew", attempt(5), ident(5))
    assert pair.client.in_flight == 32


# --- Answers and pushes that do not fit --------------------------------------


ANSWERS: dict[str, tuple[Any, list[Any]]] = {
    "worker.capacity": (
        capacity(1),
        [welcome(), welcome(2, 4), welcome(1, 3), welcome(1, 4, drain=True), welcome(1, 0)],
    ),
    "worker.resume": (
        attempt(),
        [lease(attempt(2)), lease(attempt(1, 2)), lease(replace(attempt(), attempt_id=ident(8)))],
    ),
    "task.start": (
        attempt(),
        [
            granted(attempt(), Operation.RENEW),
            finished(attempt()),
            granted(attempt(2), Operation.START),
            granted(attempt(1, 2), Operation.START),
        ],
    ),
    "task.renew": (attempt(), [granted(attempt(), Operation.START), granted(attempt(2), Operation.RENEW)]),
    "task.finish": (
        success(attempt()),
        [granted(attempt(), Operation.START), finished(attempt(2)), finished(attempt(1, 2))],
    ),
}


@pytest.mark.parametrize(
    ("name", "body", "answer"),
    [(name, body, answer) for name, (body, answers) in ANSWERS.items() for answer in answers],
)
def test_an_answer_must_fit_its_request_on_both_sides(name: str, body: Any, answer: Any) -> None:
    pair = WorkerPair().greeted()
    request = pair.server.receive(pair.client.request(name, body, ident(1)))
    assert isinstance(request, Requested)
    with pytest.raises(InvalidValue):
        pair.server.reply(ident(1), answer)
    frame = {"protocol_version": "1", "type": ACK, "message_id": ident(2), "session_id": SESSION, "reply_to": ident(1)}
    with pytest.raises(InvalidValue):
        pair.client.receive(json.dumps({**frame, "body": answer.to_body()}).encode())
    # Nothing has changed on either side: the right answer still fits.
    pair.client.receive(pair.server.reply(ident(1), answer_to(request)))


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"instance_id": ident(3)}, "body.instance_id"),
        ({"queue_id": ident(3)}, "body.instance_id"),
        ({"sequence": 1}, "body.sequence"),
    ],
)
def test_a_welcome_must_fit_its_hello_on_both_sides(changes: dict[str, Any], path: str) -> None:
    client, server = ClientSession(worker_v1.VOCABULARY), ServerSession(worker_v1.VOCABULARY)
    server.receive(client.hello(hello(), ident(1)))
    wrong = replace(welcome(), **changes)
    with pytest.raises(InvalidValue) as caught:
        server.welcome(SESSION, ident(1), wrong)
    assert caught.value.path == path
    frame = {"protocol_version": "1", "type": "worker.welcome", "message_id": ident(2), "session_id": SESSION}
    with pytest.raises(InvalidValue):
        client.receive(json.dumps({**frame, "reply_to": ident(1), "body": wrong.to_body()}).encode())


KEYED = assignment(concurrency_key="customer:42", concurrency_token=1)


@pytest.mark.parametrize(
    ("declared", "name", "body", "path"),
    [
        ({}, "task.assign", assignment(queue_id=ident(3)), "body.task.queue_id"),
        ({}, "task.assign", assignment(handler="text.other"), "body.task.handler"),
        ({}, "task.assign", assignment(handler_version="v2"), "body.task.handler"),
        ({}, "task.assign", assignment(payload_version="v2"), "body.task.handler"),
        ({"concurrency_keys": False}, "task.assign", KEYED, "body.task.concurrency_key"),
        ({"cancellation_notifications": False}, "task.cancel", cancellation(), "type"),
    ],
)
def test_a_push_must_fit_the_hello_on_both_sides(declared: dict[str, Any], name: str, body: Any, path: str) -> None:
    pair = WorkerPair(**declared).opened()
    with pytest.raises(InvalidValue) as caught:
        pair.server.push(name, body, ident(9))
    assert caught.value.path == path
    frame = {"protocol_version": "1", "type": name, "message_id": ident(9), "session_id": SESSION}
    with pytest.raises(InvalidValue) as caught:
        pair.client.receive(canonical({**frame, "body": body.to_body()}))
    assert caught.value.path == path
    # The right ones pass.
    assert isinstance(pair.client.receive(pair.server.push("task.assign", assignment(), ident(9))), Push)


def test_a_keyed_task_goes_to_a_worker_that_declared_keys() -> None:
    pair = WorkerPair().opened()
    pushed = pair.client.receive(pair.server.push("task.assign", KEYED, ident(9)))
    assert isinstance(pushed, Push)
    assert (pushed.body.task.concurrency_key, pushed.body.task.concurrency_token) == ("customer:42", 1)


# --- Limits ------------------------------------------------------------------


def test_a_result_too_large_or_too_deep_costs_its_own_request_only() -> None:
    pair = WorkerPair().opened()
    with pytest.raises(InvalidValue, match=r"body\.result"):
        pair.client.request("task.finish", success(attempt(), '"' + "x" * 262_143 + '"'), ident(1))
    assert pair.client.in_flight == 0
    # A client that does not check sends it; 31 levels would not even be a frame.
    frame = json.loads(pair.client.request("task.finish", success(attempt()), ident(1)))
    for result in ("x" * 262_143, json.loads("[" * 29 + "]" * 29)):
        frame["message_id"] = ident(0x100 + pair.server.in_flight)
        frame["body"]["result"] = result
        answer = pair.server.receive(json.dumps(frame).encode())
        assert isinstance(answer, Invalid)
        assert (answer.code, answer.type) == (ErrorCode.INVALID_ARGUMENT, "task.finish")
        assert answer.message.startswith("body.result: ")
    assert pair.server.phase is Phase.OPEN


def test_the_largest_result_fits_a_frame() -> None:
    pair = WorkerPair().opened()
    for result in ('"' + "x" * 262_142 + '"', "[" * 28 + "]" * 28):
        request = pair.server.receive(pair.client.request("task.finish", success(attempt(), result), ident(1)))
        assert isinstance(request, Requested)
        assert request.body.result == result
        pair.client.receive(pair.server.reply(ident(1), answer_to(request)))


def test_the_largest_payload_fits_a_frame() -> None:
    pair = WorkerPair(
        capabilities=(worker_v1.Capability(handler="h" * 128, handler_version="v" * 64, payload_version="v" * 64),)
    ).opened()
    body = assignment(
        handler="h" * 128,
        handler_version="v" * 64,
        payload_version="v" * 64,
        payload="x" * (Limits().payload_bytes - 2),
        concurrency_key="k" * 128,
        concurrency_token=2**64 - 1,
        retry_of=ident(5),
        priority=9,
        effect_uncertain=True,
        attempt_number=2**31 - 1,
        max_attempts=2**31 - 1,
        attempt_timeout_ms=2**31 - 1,
    )
    assert isinstance(pair.client.receive(pair.server.push("task.assign", body, ident(9))), Push)


# --- Directions and secrets --------------------------------------------------


def test_each_end_takes_only_the_other_ends_types() -> None:
    pair = WorkerPair().opened()
    frame: dict[str, Any]
    for name in ("task.assign", "task.cancel", "worker.welcome", "ack", "event.ack", "consumer.capacity"):
        frame = {"protocol_version": "1", "type": name, "message_id": ident(1), "session_id": SESSION, "body": {}}
        with pytest.raises(UnexpectedFrame):
            pair.server.receive(json.dumps(frame).encode())
    for name in ("worker.hello", "worker.resume", "task.start", "task.renew", "task.finish", "event.deliver"):
        frame = {"protocol_version": "1", "type": name, "message_id": ident(1), "session_id": SESSION, "body": {}}
        with pytest.raises(UnexpectedFrame):
            pair.client.receive(json.dumps(frame).encode())


def test_no_secret_shows_in_a_repr() -> None:
    pair = WorkerPair()
    greeting = pair.server.receive(pair.client.hello(hello(), ident(1)))
    assert isinstance(greeting, Hello)
    assert INSTANCE_SECRET not in repr(greeting) + repr(hello()) + str(hello())
    assert hello().instance_id in repr(greeting)


def test_capabilities_are_sorted_and_named_by_the_task_that_needs_them() -> None:
    other = replace(NORMALIZE, handler_version="v0")
    assert sorted([NORMALIZE, other]) == [other, NORMALIZE]
    assert worker_v1.Capability.of(assignment().task) == NORMALIZE

"""The session machine: phases, ids, replies, capacity, and what either end refuses to send or to take."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from orbit.protocol import events_v1
from orbit.protocol.errors import ErrorCode, InvalidJSON, InvalidValue, ProtocolError
from orbit.protocol.limits import Limits
from orbit.protocol.phases import TRANSITIONS, Kind, Phase
from orbit.protocol.session import (
    ClientSession,
    Ended,
    Hello,
    Invalid,
    Push,
    Refused,
    Reply,
    Requested,
    ServerSession,
    Welcomed,
)
from orbit.protocol.session_end import CannotSend, DuplicateRequest, NotOpen, SessionBusy, UnexpectedFrame
from tests.support.conversations import (
    NOW,
    SECRET,
    SESSION,
    SUBSCRIPTION,
    Pair,
    ack,
    acked,
    answer_to,
    capacity,
    changed,
    delivery,
    hello,
    ident,
    proof,
    release,
    released,
    welcome,
)


def request_of(pair: Pair, name: str, body: Any, message_id: str) -> Requested:
    """Send a valid request from client to server."""
    request = pair.server.receive(pair.client.request(name, body, message_id))
    assert isinstance(request, Requested)
    return request


# --- Phases ------------------------------------------------------------------


def test_the_whole_table() -> None:
    rows = {(before, kind, after) for before, row in TRANSITIONS.items() for kind, after in row.items()}
    assert rows == {
        ("GREETING", "hello", "GREETING"),
        ("GREETING", "welcome", "READY"),
        ("GREETING", "fatal", "CLOSED"),
        ("READY", "request", "READY"),
        ("READY", "confirmation", "OPEN"),
        ("READY", "ack", "READY"),
        ("READY", "refusal", "READY"),
        ("READY", "fatal", "CLOSED"),
        ("OPEN", "request", "OPEN"),
        ("OPEN", "confirmation", "OPEN"),
        ("OPEN", "ack", "OPEN"),
        ("OPEN", "refusal", "OPEN"),
        ("OPEN", "push", "OPEN"),
        ("OPEN", "fatal", "CLOSED"),
    }
    assert set(TRANSITIONS) == set(Phase)
    assert {kind for row in TRANSITIONS.values() for kind in row} == set(Kind)


def test_a_conversation_from_hello_to_the_end() -> None:
    pair = Pair()
    greeting = pair.server.receive(pair.client.hello(hello(), ident(1)))
    assert greeting == Hello(ident(1), hello())
    assert (pair.client.phase, pair.server.phase) == (Phase.GREETING, Phase.GREETING)

    assert pair.client.receive(pair.server.welcome(SESSION, ident(1), welcome())) == Welcomed(welcome())
    assert (pair.client.phase, pair.server.phase) == (Phase.READY, Phase.READY)
    assert pair.client.session_id == pair.server.session_id == SESSION

    request = pair.server.receive(pair.client.request("consumer.capacity", capacity(1, 5), ident(2)))
    assert request == Requested(ident(2), "consumer.capacity", capacity(1, 5))
    assert (pair.client.phase, pair.server.phase) == (Phase.READY, Phase.READY)
    answer = pair.client.receive(pair.server.reply(ident(2), welcome(1, 5)))
    assert answer == Reply(ident(2), "consumer.capacity", welcome(1, 5))
    assert (pair.client.phase, pair.server.phase) == (Phase.OPEN, Phase.OPEN)

    pushed = pair.client.receive(pair.server.push("event.deliver", delivery(7), ident(3)))
    assert isinstance(pushed, Push)
    assert (pushed.message_id, pushed.type) == (ident(3), "event.deliver")
    assert pushed.body.proof == proof(7)
    assert pushed.body.event["any"] == "object"
    assert bytes(pushed.body.event["n"]) == b"1.10"

    assert request_of(pair, "event.ack", ack(7, 8), ident(4)).body == ack(7, 8)
    assert request_of(pair, "event.release", release(9, started=True), ident(5)).body == release(9, started=True)
    # Answers may come in any order.
    assert pair.client.receive(pair.server.reply(ident(5), released(9))) == Reply(
        ident(5), "event.release", released(9)
    )
    refusal = pair.server.refuse(ident(4), ErrorCode.UNAVAILABLE, "the database is away")
    assert pair.client.receive(refusal) == Refused(ident(4), "event.ack", "UNAVAILABLE", "the database is away")
    assert pair.client.in_flight == pair.server.in_flight == 0

    end = pair.server.fatal(ErrorCode.UNAVAILABLE, "this node is stopping")
    assert pair.client.receive(end) == Ended("UNAVAILABLE", "this node is stopping")
    assert (pair.client.phase, pair.server.phase) == (Phase.CLOSED, Phase.CLOSED)


def test_nothing_but_a_hello_opens_a_conversation() -> None:
    pair = Pair()
    with pytest.raises(NotOpen):
        pair.client.request("event.ack", ack(1), ident(1))
    stranger = Pair().greeted().client.request("event.ack", ack(1), ident(1))
    with pytest.raises(UnexpectedFrame, match="request is not allowed in phase GREETING"):
        pair.server.receive(stranger)


def test_hello_comes_once() -> None:
    pair = Pair()
    data = pair.client.hello(hello(), ident(1))
    assert isinstance(pair.server.receive(data), Hello)
    with pytest.raises(NotOpen):
        pair.client.hello(hello(), ident(2))
    with pytest.raises(UnexpectedFrame, match="hello was sent already"):
        pair.server.receive(changed(data, message_id=ident(2)))
    pair.client.receive(pair.server.welcome(SESSION, ident(1), welcome()))
    with pytest.raises(NotOpen):
        pair.client.hello(hello(), ident(3))
    with pytest.raises(UnexpectedFrame, match="hello is not allowed in phase READY"):
        pair.server.receive(changed(data, message_id=ident(3)))


def test_a_hello_has_no_session_id() -> None:
    pair = Pair()
    with pytest.raises(UnexpectedFrame, match="hello has no session_id"):
        pair.server.receive(changed(pair.client.hello(hello(), ident(1)), session_id=SESSION))


def test_a_refused_hello_ends_both_sides() -> None:
    pair = Pair()
    pair.server.receive(pair.client.hello(hello(), ident(1)))
    refusal = pair.server.refuse(ident(1), ErrorCode.NOT_FOUND, "no such subscription")
    frame = json.loads(refusal)
    assert frame["reply_to"] == ident(1)
    assert "session_id" not in frame
    assert pair.client.receive(refusal) == Ended("NOT_FOUND", "no such subscription")
    assert (pair.client.phase, pair.server.phase) == (Phase.CLOSED, Phase.CLOSED)
    assert pair.client.lost() == pair.server.lost() == ()


def test_a_wrong_hello_can_only_be_refused() -> None:
    pair = Pair()
    data = changed(pair.client.hello(hello(), ident(1)), body={"subscription_id": "x", "consumer_id": ident(9)})
    assert pair.server.receive(data) == Invalid(
        ident(1),
        "consumer.hello",
        ErrorCode.INVALID_ARGUMENT,
        "body.subscription_id: must be 32 lowercase hexadecimal digits",
    )
    with pytest.raises(CannotSend):
        pair.server.welcome(SESSION, ident(1), welcome())
    assert isinstance(pair.client.receive(pair.server.refuse(ident(1), ErrorCode.INVALID_ARGUMENT, "no")), Ended)


def test_the_server_may_give_up_before_the_hello() -> None:
    pair = Pair()
    end = pair.server.fatal(ErrorCode.UNAVAILABLE, "stopping")
    assert {"session_id", "reply_to"}.isdisjoint(json.loads(end))
    pair.client.hello(hello(), ident(1))
    assert pair.client.receive(end) == Ended("UNAVAILABLE", "stopping")
    assert pair.client.lost() == (ident(1),)


def test_a_closed_session_takes_and_sends_nothing() -> None:
    pair, other = Pair().opened(), Pair().opened()
    frames = [
        other.server.push("event.deliver", delivery(), ident(1)),
        other.server.fatal(ErrorCode.INTERNAL, "x"),
    ]
    pair.client.lost()
    pair.server.lost()
    for data in frames:
        with pytest.raises(UnexpectedFrame, match="in phase CLOSED"):
            pair.client.receive(data)
    with pytest.raises(NotOpen):
        pair.client.request("event.ack", ack(1), ident(2))
    with pytest.raises(UnexpectedFrame, match="in phase CLOSED"):
        pair.server.receive(other.client.request("event.ack", ack(1), ident(2)))
    with pytest.raises(NotOpen):
        pair.server.push("event.deliver", delivery(), ident(1))
    with pytest.raises(NotOpen):
        pair.server.fatal(ErrorCode.INTERNAL, "x")


# --- Pushes and capacity -----------------------------------------------------


def test_nothing_is_pushed_before_the_first_confirmed_capacity() -> None:
    early = Pair().opened().server.push("event.deliver", delivery(), ident(9))
    pair = Pair()
    with pytest.raises(NotOpen):
        pair.server.push("event.deliver", delivery(), ident(9))
    pair.greeted()
    with pytest.raises(NotOpen):
        pair.server.push("event.deliver", delivery(), ident(9))
    with pytest.raises(UnexpectedFrame, match="push is not allowed in phase READY"):
        pair.client.receive(early)
    # An announced capacity is not a confirmed one, and a refused one does not count.
    request_of(pair, "consumer.capacity", capacity(1), ident(1))
    with pytest.raises(NotOpen):
        pair.server.push("event.deliver", delivery(), ident(9))
    pair.client.receive(pair.server.refuse(ident(1), ErrorCode.UNAVAILABLE, "again later"))
    with pytest.raises(NotOpen):
        pair.server.push("event.deliver", delivery(), ident(9))
    # Another request's answer does not open the session either.
    request = request_of(pair, "event.ack", ack(1), ident(2))
    pair.client.receive(pair.server.reply(ident(2), answer_to(request)))
    with pytest.raises(UnexpectedFrame, match="push is not allowed in phase READY"):
        pair.client.receive(early)
    request = request_of(pair, "consumer.capacity", capacity(1), ident(3))
    pair.client.receive(pair.server.reply(ident(3), answer_to(request)))
    assert isinstance(pair.client.receive(early), Push)


@pytest.mark.parametrize(
    ("before", "sequence", "room", "fault"),
    [
        ([], 1, 0, None),
        ([], 2, 20, (ErrorCode.INVALID_ARGUMENT, "must start at 1")),
        ([(1, 20)], 1, 20, None),
        ([(1, 20)], 1, 21, (ErrorCode.IDEMPOTENCY_CONFLICT, "was used with other content")),
        ([(1, 20)], 2, 0, None),
        ([(1, 20)], 18446744073709551615, 1, None),
        ([(1, 20), (5, 0)], 5, 0, None),
        ([(1, 20), (5, 0)], 5, 1, (ErrorCode.IDEMPOTENCY_CONFLICT, "was used with other content")),
        ([(1, 20), (5, 0)], 4, 0, (ErrorCode.STATE_CONFLICT, "must not go back")),
        ([(1, 20), (5, 0)], 1, 20, (ErrorCode.STATE_CONFLICT, "must not go back")),
    ],
)
def test_the_sequence_of_capacities(
    before: list[tuple[int, int]], sequence: int, room: int, fault: tuple[ErrorCode, str] | None
) -> None:
    pair = Pair().greeted()
    for number, (earlier, earlier_room) in enumerate(before):
        request = request_of(pair, "consumer.capacity", capacity(earlier, earlier_room), ident(number))
        pair.client.receive(pair.server.reply(request.message_id, answer_to(request)))
    bypass = ClientSession(events_v1.VOCABULARY)
    bypass.phase, bypass.session_id = Phase.READY, SESSION
    if sequence != 1:
        bypass.request("consumer.capacity", capacity(1), ident(100))
    data = bypass.request("consumer.capacity", capacity(sequence, room), ident(99))
    received = pair.server.receive(data)
    if fault is None:
        assert pair.client.request("consumer.capacity", capacity(sequence, room), ident(99)) == data
        assert received == Requested(ident(99), "consumer.capacity", capacity(sequence, room))
    else:
        assert received == Invalid(ident(99), "consumer.capacity", fault[0], f"body.sequence: {fault[1]}")
        with pytest.raises(InvalidValue) as caught:
            pair.client.request("consumer.capacity", capacity(sequence, room), ident(99))
        assert (caught.value.path, caught.value.reason) == ("body.sequence", fault[1])
        assert pair.client.in_flight == 0


def test_a_refused_sequence_does_not_count() -> None:
    pair = Pair().greeted()
    first = pair.client.request("consumer.capacity", capacity(1), ident(1))
    assert isinstance(pair.server.receive(changed(first, body={"sequence": "9", "capacity": 1})), Invalid)
    pair.client.receive(pair.server.refuse(ident(1), ErrorCode.INVALID_ARGUMENT, "no"))
    assert pair.server.receive(pair.client.request("consumer.capacity", capacity(1), ident(2))) == Requested(
        ident(2), "consumer.capacity", capacity(1)
    )


# --- Requests in flight ------------------------------------------------------


def test_thirty_two_requests_are_in_flight_at_most() -> None:
    pair = Pair().greeted()
    for number in range(32):
        request_of(pair, "event.ack", ack(number), ident(number))
    with pytest.raises(SessionBusy):
        pair.client.request("event.ack", ack(32), ident(32))
    assert pair.client.in_flight == 32
    surplus = Pair().greeted().client.request("event.ack", ack(32), ident(32))
    with pytest.raises(UnexpectedFrame, match="too many requests in flight"):
        pair.server.receive(surplus)
    pair.client.receive(pair.server.reply(ident(7), acked(7)))
    assert request_of(pair, "event.ack", ack(32), ident(32)).message_id == ident(32)


def test_the_bound_on_requests_is_a_limit_passed_in() -> None:
    pair = Pair(Limits(control_in_flight=1)).greeted()
    pair.client.request("event.ack", ack(1), ident(1))
    with pytest.raises(SessionBusy):
        pair.client.request("event.ack", ack(2), ident(2))


def test_no_request_is_in_flight_twice_but_an_answered_one_may_be_repeated() -> None:
    pair = Pair().greeted()
    data = pair.client.request("event.ack", ack(1), ident(1))
    pair.server.receive(data)
    with pytest.raises(DuplicateRequest):
        pair.client.request("event.ack", ack(1), ident(1))
    with pytest.raises(UnexpectedFrame, match="message_id is in flight already"):
        pair.server.receive(data)
    pair.client.receive(pair.server.reply(ident(1), acked(1)))
    assert pair.client.request("event.ack", ack(1), ident(1)) == data
    assert pair.server.receive(data) == Requested(ident(1), "event.ack", ack(1))


def test_lost_gives_back_every_unanswered_request_once() -> None:
    pair = Pair().opened()
    for number in (3, 1, 2):
        request_of(pair, "event.ack", ack(number), ident(number))
    pair.client.receive(pair.server.reply(ident(1), acked(1)))
    pair.client.receive(pair.server.refuse(ident(2), ErrorCode.UNAVAILABLE, "x"))
    unsent = pair.client.request("event.ack", ack(4), ident(4))
    assert unsent
    assert pair.client.lost() == (ident(3), ident(4))
    assert pair.server.lost() == (ident(3),)
    assert pair.client.lost() == pair.server.lost() == ()
    assert (pair.client.phase, pair.server.phase) == (Phase.CLOSED, Phase.CLOSED)


def test_lost_during_the_greeting_names_the_hello() -> None:
    client = ClientSession(events_v1.VOCABULARY)
    assert client.lost() == ()
    client = ClientSession(events_v1.VOCABULARY)
    client.hello(hello(), ident(1))
    assert client.lost() == (ident(1),)


# --- Answers -----------------------------------------------------------------


def test_an_answer_belongs_to_one_request_of_this_session() -> None:
    pair = Pair().opened()
    request_of(pair, "event.ack", ack(1), ident(1))
    good = pair.server.reply(ident(1), acked(1))
    for wrong in (
        changed(good, reply_to=ident(2)),
        changed(good, reply_to=...),
        changed(good, session_id=ident(2)),
        changed(good, session_id=...),
        changed(good, type="consumer.welcome"),
    ):
        with pytest.raises(UnexpectedFrame):
            pair.client.receive(wrong)
    assert pair.client.receive(good) == Reply(ident(1), "event.ack", acked(1))
    with pytest.raises(UnexpectedFrame, match="reply_to names no request in flight"):
        pair.client.receive(good)


def test_a_welcome_answers_the_hello_and_brings_the_session_id() -> None:
    pair = Pair()
    pair.server.receive(pair.client.hello(hello(), ident(1)))
    good = pair.server.welcome(SESSION, ident(1), welcome())
    for wrong in (changed(good, type="ack"), changed(good, reply_to=ident(2)), changed(good, reply_to=...)):
        with pytest.raises(UnexpectedFrame):
            pair.client.receive(wrong)
    with pytest.raises(InvalidValue, match="session_id: is required"):
        pair.client.receive(changed(good, session_id=...))
    assert pair.client.receive(good) == Welcomed(welcome())


@pytest.mark.parametrize(
    ("request_name", "body", "answer"),
    [
        ("event.ack", ack(1, 2), acked(1)),
        ("event.ack", ack(1, 2), acked(2, 1)),
        ("event.ack", ack(1), acked(1, 2)),
        ("event.ack", ack(1), acked(2)),
        ("event.ack", ack(1), released(1)),
        ("event.release", release(1), acked(1)),
        ("event.release", release(1), released(2)),
        ("consumer.capacity", capacity(1, 20), welcome(1, 19)),
        ("consumer.capacity", capacity(1, 20), welcome(2, 20)),
        ("consumer.capacity", capacity(1, 20), welcome(None, 20)),
        ("event.ack", ack(1), welcome(1, 1)),
        ("consumer.capacity", capacity(1, 20), acked(1)),
    ],
)
def test_an_answer_must_fit_its_request_on_both_sides(request_name: str, body: Any, answer: Any) -> None:
    pair = Pair().greeted()
    request = request_of(pair, request_name, body, ident(1))
    with pytest.raises(InvalidValue):
        pair.server.reply(ident(1), answer)
    good = pair.server.reply(ident(1), answer_to(request))
    with pytest.raises(InvalidValue):
        pair.client.receive(changed(good, body=answer.to_body()))
    assert pair.client.receive(good) == Reply(ident(1), request_name, answer_to(request))


@pytest.mark.parametrize(
    "answer",
    [
        welcome(1, 0),
        welcome(None, 1),
        events_v1.Welcome(subscription_id=ident(9), queue_id=ident(8), server_time=NOW),
    ],
)
def test_a_welcome_must_fit_its_hello_on_both_sides(answer: events_v1.Welcome) -> None:
    pair = Pair()
    pair.server.receive(pair.client.hello(hello(), ident(1)))
    with pytest.raises(InvalidValue):
        pair.server.welcome(SESSION, ident(1), answer)
    good = pair.server.welcome(SESSION, ident(1), welcome())
    with pytest.raises(InvalidValue):
        pair.client.receive(changed(good, body=answer.to_body()))


def test_a_refused_proof_stands_in_a_list_with_granted_ones() -> None:
    mixed = events_v1.Verdicts(
        verdicts=(
            *acked(1).verdicts,
            events_v1.Verdict(
                delivery_id=ident(2), epoch=1, disposition=events_v1.Disposition.REFUSED, code=ErrorCode.STALE_EPOCH
            ),
        )
    )
    pair = Pair().greeted()
    request_of(pair, "event.ack", ack(1, 2), ident(1))
    answer = pair.client.receive(pair.server.reply(ident(1), mixed))
    assert isinstance(answer, Reply)
    assert answer.body == mixed
    assert answer.body.verdicts[1].code == ErrorCode.STALE_EPOCH


def test_each_request_is_answered_once() -> None:
    pair = Pair().opened()
    request_of(pair, "event.ack", ack(1), ident(1))
    pair.server.reply(ident(1), acked(1))
    with pytest.raises(CannotSend):
        pair.server.reply(ident(1), acked(1))
    with pytest.raises(CannotSend):
        pair.server.refuse(ident(1), ErrorCode.INTERNAL, "x")
    with pytest.raises(CannotSend):
        pair.server.reply(ident(2), acked(1))


def test_a_wrong_body_costs_its_own_request_only() -> None:
    pair = Pair().opened()
    data = pair.client.request("event.ack", ack(1), ident(1))
    body = {"deliveries": [{**proof(1).to_body(), "epoch": 1}]}
    assert pair.server.receive(changed(data, body=body)) == Invalid(
        ident(1),
        "event.ack",
        ErrorCode.INVALID_ARGUMENT,
        "body.deliveries[0].epoch: must be a decimal string from 1 to 18446744073709551615",
    )
    with pytest.raises(CannotSend, match="can only be refused"):
        pair.server.reply(ident(1), acked(1))
    refusal = pair.server.refuse(ident(1), ErrorCode.INVALID_ARGUMENT, "body.deliveries[0].epoch: …")
    assert pair.client.receive(refusal) == Refused(
        ident(1), "event.ack", "INVALID_ARGUMENT", "body.deliveries[0].epoch: …"
    )
    assert request_of(pair, "event.ack", ack(1), ident(2)).body == ack(1)


def test_errors_in_a_session_carry_its_id() -> None:
    pair = Pair().opened()
    request_of(pair, "event.ack", ack(1), ident(1))
    refusal = pair.server.refuse(ident(1), ErrorCode.UNAVAILABLE, "x")
    assert json.loads(refusal)["session_id"] == SESSION
    end = pair.server.fatal(ErrorCode.SESSION_FENCED, "x")
    assert json.loads(end)["session_id"] == SESSION
    assert "reply_to" not in json.loads(end)
    for wrong in (
        changed(refusal, session_id=...),
        changed(refusal, session_id=ident(1)),
        changed(refusal, reply_to=ident(2)),
        changed(end, session_id=...),
    ):
        with pytest.raises(UnexpectedFrame):
            pair.client.receive(wrong)
    assert isinstance(pair.client.receive(refusal), Refused)
    assert isinstance(pair.client.receive(end), Ended)


def test_a_refusal_of_the_hello_has_no_session_id() -> None:
    pair = Pair()
    pair.server.receive(pair.client.hello(hello(), ident(1)))
    refusal = pair.server.refuse(ident(1), ErrorCode.NOT_FOUND, "x")
    for wrong in (changed(refusal, session_id=SESSION), changed(refusal, reply_to=ident(2))):
        with pytest.raises(UnexpectedFrame):
            pair.client.receive(wrong)
    assert pair.client.phase is Phase.GREETING
    assert isinstance(pair.client.receive(refusal), Ended)


def test_an_error_message_fits_the_wire_whatever_is_passed() -> None:
    pair = Pair().greeted()
    for number, (message, expected) in enumerate([("", "INTERNAL"), ("x" * 1_001, "x" * 1_000)]):
        request_of(pair, "event.ack", ack(1), ident(number))
        assert pair.client.receive(pair.server.refuse(ident(number), ErrorCode.INTERNAL, message)) == Refused(
            ident(number), "event.ack", "INTERNAL", expected
        )


# --- Direction, strictness, leniency -----------------------------------------


def test_each_end_takes_only_the_other_ends_types() -> None:
    pair = Pair().opened()
    theirs = pair.server.push("event.deliver", delivery(), ident(1))
    with pytest.raises(UnexpectedFrame, match="type is not one a client sends"):
        pair.server.receive(theirs)
    ours = pair.client.request("event.ack", ack(1), ident(2))
    with pytest.raises(UnexpectedFrame, match="type is not one a server sends"):
        pair.client.receive(ours)
    for name in ("task.assign", "worker.hello", "event.delivered", "ack"):
        with pytest.raises(UnexpectedFrame):
            pair.server.receive(changed(ours, type=name))
        with pytest.raises(ProtocolError):
            pair.client.receive(changed(theirs, type=name))
    with pytest.raises(InvalidValue):
        pair.client.request("event.deliver", ack(1), ident(3))
    with pytest.raises(InvalidValue):
        pair.server.push("event.ack", delivery(), ident(3))


def test_a_push_answers_nothing_and_belongs_to_the_session() -> None:
    pair = Pair().opened()
    good = pair.server.push("event.deliver", delivery(), ident(1))
    for wrong in (changed(good, reply_to=ident(2)), changed(good, session_id=ident(2)), changed(good, session_id=...)):
        with pytest.raises(UnexpectedFrame):
            pair.client.receive(wrong)


def test_the_client_ignores_what_a_newer_server_adds() -> None:
    pair = Pair().opened()
    push = json.loads(pair.server.push("event.deliver", delivery(), ident(1)))
    push["trace"] = 1
    push["body"]["hint"] = None
    push["body"]["delivery"]["priority"] = 3
    received = pair.client.receive(json.dumps(push).encode())
    assert isinstance(received, Push)
    assert received.body.proof == proof(1)

    request_of(pair, "event.ack", ack(1), ident(2))
    answer = json.loads(pair.server.reply(ident(2), acked(1)))
    answer["body"]["node"] = "x"
    answer["body"]["verdicts"][0]["note"] = {}
    assert pair.client.receive(json.dumps(answer).encode()) == Reply(ident(2), "event.ack", acked(1))

    request_of(pair, "event.ack", ack(1), ident(3))
    refusal = json.loads(pair.server.refuse(ident(3), ErrorCode.UNAVAILABLE, "x"))
    refusal["error"]["retry_after_ms"] = 5
    assert isinstance(pair.client.receive(json.dumps(refusal).encode()), Refused)


@pytest.mark.parametrize("where", ["frame", "body", "item"])
def test_the_server_refuses_what_is_not_declared(where: str) -> None:
    pair = Pair().opened()
    frame = json.loads(pair.client.request("event.ack", ack(1), ident(1)))
    target = {"frame": frame, "body": frame["body"], "item": frame["body"]["deliveries"][0]}[where]
    target["Epoch"] = "1"
    data = json.dumps(frame).encode()
    if where == "frame":
        with pytest.raises(InvalidValue):
            pair.server.receive(data)
    else:
        assert isinstance(pair.server.receive(data), Invalid)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("event.ack", events_v1.Ack(deliveries=())),
        ("event.ack", ack(*range(65))),
        ("event.ack", events_v1.Ack(deliveries=(proof(1, epoch=0),))),
        ("event.release", release(*range(65))),
        ("consumer.capacity", capacity(1, 1_001)),
        ("consumer.capacity", capacity(1, -1)),
    ],
)
def test_a_body_against_the_rules_is_not_sent(name: str, body: Any) -> None:
    pair = Pair().greeted()
    with pytest.raises(InvalidValue):
        pair.client.request(name, body, ident(1))
    assert pair.client.in_flight == 0
    assert pair.client.lost() == ()


def test_the_largest_batch_is_sent_and_taken() -> None:
    pair = Pair().greeted()
    assert request_of(pair, "event.ack", ack(*range(64)), ident(1)).body == ack(*range(64))
    answer = pair.client.receive(pair.server.reply(ident(1), acked(*range(64))))
    assert isinstance(answer, Reply)
    assert len(answer.body.verdicts) == 64


def test_message_ids_are_checked_before_anything_is_in_flight() -> None:
    pair = Pair().opened()
    with pytest.raises(InvalidValue):
        pair.client.request("event.ack", ack(1), "not an id")
    with pytest.raises(InvalidValue):
        pair.server.push("event.deliver", delivery(), "not an id")
    with pytest.raises(InvalidValue):
        Pair().client.hello(hello(), "")
    assert pair.client.in_flight == 0


def test_a_failed_receive_changes_nothing() -> None:
    pair = Pair().opened()
    request_of(pair, "event.ack", ack(1), ident(1))
    for data in (b"", b"\xff", b"{}", b'{"type":"ack","type":"ack"}', b"[" * 40, b" " * 524_289):
        with pytest.raises((InvalidJSON, InvalidValue)):
            pair.client.receive(data)
        with pytest.raises((InvalidJSON, InvalidValue)):
            pair.server.receive(data)
    assert (pair.client.phase, pair.server.phase) == (Phase.OPEN, Phase.OPEN)
    assert pair.client.receive(pair.server.reply(ident(1), acked(1))) == Reply(ident(1), "event.ack", acked(1))


@pytest.mark.parametrize("event", [{}, {"event_id": 1}, {"state": None, "result": None}, {"deep": [[[[[1]]]]]}])
def test_a_bad_event_in_a_good_frame_does_not_fail_the_frame(event: dict[str, Any]) -> None:
    pair = Pair().opened()
    received = pair.client.receive(pair.server.push("event.deliver", delivery(1, event), ident(1)))
    assert isinstance(received, Push)
    assert set(received.body.event) == set(event)


@pytest.mark.parametrize("event", [None, 1, "{}", [], True])
def test_an_event_is_an_object(event: Any) -> None:
    pair = Pair().opened()
    with pytest.raises(InvalidValue, match=r"body\.event: must be an object"):
        pair.server.push("event.deliver", delivery(1, event), ident(1))
    good = json.loads(pair.server.push("event.deliver", delivery(1), ident(1)))
    good["body"]["event"] = event
    with pytest.raises(InvalidValue, match=r"body\.event: must be an object"):
        pair.client.receive(json.dumps(good).encode())


def test_the_frozen_text_of_an_event_travels_unchanged() -> None:
    frozen = b'{"a":1.10,"b":-0,"c":"\xe4\xb8\xad","d":1e400}'
    pair = Pair().opened()
    data = pair.server.push("event.deliver", delivery(1, msgspec.Raw(frozen)), ident(1))
    assert b'"event":' + frozen in data
    received = pair.client.receive(data)
    assert isinstance(received, Push)
    assert bytes(received.body.event["d"]) == b"1e400"


def test_the_server_makes_a_fresh_message_id_for_every_answer() -> None:
    made = iter(ident(number) for number in (501, 502, 503, 504))
    server = ServerSession(events_v1.VOCABULARY, make_id=lambda: next(made))
    client = ClientSession(events_v1.VOCABULARY)
    server.receive(client.hello(hello(), ident(1)))
    answers = [server.welcome(SESSION, ident(1), welcome())]
    client.receive(answers[0])
    server.receive(client.request("event.ack", ack(1), ident(2)))
    answers.append(server.reply(ident(2), acked(1)))
    server.receive(client.request("event.ack", ack(1), ident(3)))
    answers.append(server.refuse(ident(3), ErrorCode.INTERNAL, "x"))
    answers.append(server.fatal(ErrorCode.INTERNAL, "x"))
    assert [json.loads(data)["message_id"] for data in answers] == [ident(number) for number in (501, 502, 503, 504)]


def test_no_secret_and_no_content_shows_in_a_repr() -> None:
    pair = Pair().opened()
    pushed = pair.client.receive(pair.server.push("event.deliver", delivery(1, {"password": "hunter2"}), ident(1)))
    request = request_of(pair, "event.ack", ack(1), ident(2))
    refused = pair.client.receive(pair.server.refuse(ident(2), ErrorCode.INTERNAL, "hunter2"))
    shown = repr([pushed, request, refused, ack(1), release(1), delivery(1, {"password": "hunter2"})])
    assert SECRET not in shown
    assert "hunter2" not in shown
    assert "password" not in shown
    assert ident(1) in shown
    assert SUBSCRIPTION in repr(welcome())

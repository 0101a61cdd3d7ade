"""The published schema of pulse.events.v1 and the code give one verdict on every frame and every event.

The corpus is made from the schema; every keyword of it is violated at least once. Two differences are meant. A client
ignores undeclared members of server frames (design: an older SDK, a newer server), so there the code is held against
the schema without `additionalProperties`. And some rules show in bytes only: those cases are listed by hand below.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from orbit.protocol import events_v1
from orbit.protocol.errors import InvalidValue, ProtocolError
from orbit.protocol.event import Event
from orbit.protocol.session import ClientSession, Hello, Invalid, Requested, ServerSession
from orbit.protocol.strict_json import parse
from orbit.protocol.values import Secret, parse_counter, parse_id
from tests.support.conversations import CONSUMER, NOW, QUEUE, SECRET, SESSION, SUBSCRIPTION, ident
from tests.support.schema_corpus import SchemaCorpus, Variant

SCHEMA = Path(events_v1.__file__).with_name("events.schema.json")
CORPUS = SchemaCorpus(SCHEMA)
CLIENT, SERVER, EVENT = "#/$defs/clientFrame", "#/$defs/serverFrame", "#/$defs/event"
DEFINITIONS = (CLIENT, SERVER, EVENT)
HELLO_ID = ident(0xA0)


# --- The code's verdict ------------------------------------------------------


@cache
def code_accepts(definition: str, data: bytes) -> bool:
    """Whether some conversation exists in which the code accepts these bytes."""
    if definition == EVENT:
        try:
            Event.parse(data)
        except ProtocolError:
            return False
        return True
    try:
        frame: Any = json.loads(data)
    except ValueError:
        frame = {}
    frame = frame if isinstance(frame, dict) else {}
    return any(_takes(session, data) for session in (_servers(frame) if definition == CLIENT else _clients(frame)))


def _takes(session: ClientSession | ServerSession, data: bytes) -> bool:
    try:
        result = session.receive(data)
    except ProtocolError:
        return False
    # A wrong body is refused as Invalid; with the sequence of a capacity that is the conversation's concern.
    return not isinstance(result, Invalid)


def _id_of(frame: dict[str, Any], name: str, otherwise: str) -> str:
    try:
        return parse_id(frame.get(name), name)
    except InvalidValue:
        return otherwise


def _greet(session_id: str) -> tuple[ClientSession, ServerSession]:
    client, server = ClientSession(events_v1.VOCABULARY), ServerSession(events_v1.VOCABULARY)
    hello = events_v1.Hello(subscription_id=SUBSCRIPTION, consumer_id=CONSUMER)
    assert isinstance(server.receive(client.hello(hello, HELLO_ID)), Hello)
    welcome = events_v1.Welcome(subscription_id=SUBSCRIPTION, queue_id=QUEUE, server_time=NOW)
    client.receive(server.welcome(session_id, HELLO_ID, welcome))
    return client, server


def _confirm(client: ClientSession, server: ServerSession, sequence: int, capacity: int) -> None:
    request = server.receive(
        client.request("consumer.capacity", events_v1.Capacity(sequence=sequence, capacity=capacity), ident(0xA1))
    )
    assert isinstance(request, Requested)
    welcome = events_v1.Welcome(
        subscription_id=SUBSCRIPTION, queue_id=QUEUE, server_time=NOW, sequence=sequence, capacity=capacity
    )
    client.receive(server.reply(ident(0xA1), welcome))


def _servers(frame: dict[str, Any]) -> Iterator[ServerSession]:
    """Servers that wait for a hello, for the first capacity, and for a later one."""
    yield ServerSession(events_v1.VOCABULARY)
    session_id = _id_of(frame, "session_id", SESSION)
    yield _greet(session_id)[1]
    client, server = _greet(session_id)
    _confirm(client, server, 1, 0)
    yield server


def _clients(frame: dict[str, Any]) -> Iterator[ClientSession]:
    """Clients that wait for a welcome and for the answer to each request that the frame might answer."""
    body = frame.get("body")
    body = body if isinstance(body, dict) else {}
    reply_to = _id_of(frame, "reply_to", ident(0xA2))
    waiting = ClientSession(events_v1.VOCABULARY)
    subscription_id = _id_of(body, "subscription_id", SUBSCRIPTION)
    waiting.hello(events_v1.Hello(subscription_id=subscription_id, consumer_id=CONSUMER), reply_to)
    yield waiting

    session_id = _id_of(frame, "session_id", SESSION)
    for capacity in _capacities(body):
        client, server = _greet(session_id)
        if capacity.sequence > 1:
            _confirm(client, server, 1, 0)
        client.request("consumer.capacity", capacity, reply_to)
        yield client
    proofs = _proofs(body)
    for name, request in (
        ("event.ack", events_v1.Ack(deliveries=proofs)),
        (
            "event.release",
            events_v1.Release(deliveries=tuple(events_v1.Released(proof=one, started=False) for one in proofs)),
        ),
    ):
        client, server = _greet(session_id)
        _confirm(client, server, 1, 0)
        client.request(name, request, reply_to)
        yield client


def _capacities(body: dict[str, Any]) -> list[events_v1.Capacity]:
    try:
        data = json.dumps({name: body[name] for name in ("sequence", "capacity")}).encode()
        return [events_v1.Capacity.parse(parse(data, max_bytes=1_000))]
    except (KeyError, ProtocolError):
        return [events_v1.Capacity(sequence=1, capacity=20)]


def _proofs(body: dict[str, Any]) -> tuple[events_v1.Proof, ...]:
    default = events_v1.Proof(delivery_id=ident(1), epoch=1, lease_secret=Secret(SECRET))
    verdicts = body.get("verdicts")
    proofs = []
    for verdict in verdicts if isinstance(verdicts, list) else []:
        try:
            delivery_id, epoch = parse_id(verdict["delivery_id"], ""), parse_counter(verdict["epoch"], "")
        except (KeyError, TypeError, InvalidValue):
            return (default,)
        proofs.append(events_v1.Proof(delivery_id=delivery_id, epoch=epoch, lease_secret=Secret(SECRET)))
    return tuple(proofs) if 1 <= len(proofs) <= events_v1.BATCH_MAX else (default,)


# --- The corpus --------------------------------------------------------------


@cache
def variants(definition: str) -> tuple[Variant, ...]:
    """Every variant of the definition, each instance once for each keyword that it violates."""
    found = {
        (variant.violated, json.dumps(variant.instance)): variant
        for example in CORPUS.basis(definition)
        for variant in CORPUS.variants(definition, example)
    }
    return tuple(found.values())


def test_the_schema_is_a_valid_one_and_every_object_in_it_is_closed_but_the_event() -> None:
    open_objects = {
        pointer
        for pointer, node in _nodes(CORPUS.document, "#")
        if node.get("type") == "object" and node.get("additionalProperties") is not False
    }
    assert open_objects == {EVENT, "#/$defs/deliverBody/properties/event"}
    assert CORPUS.document["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def _nodes(node: Any, pointer: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, dict):
        yield pointer, node
        for name, inner in node.items():
            yield from _nodes(inner, f"{pointer}/{name}")
    elif isinstance(node, list):
        for index, inner in enumerate(node):
            yield from _nodes(inner, f"{pointer}/{index}")


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_what_the_schema_accepts_the_code_accepts(definition: str) -> None:
    examples = CORPUS.examples(definition)
    assert len(examples) > 8
    for example in examples:
        assert CORPUS.accepts(definition, example), example
        assert code_accepts(definition, json.dumps(example).encode()), example
        if definition != EVENT:
            assert CORPUS.accepts("#", example)


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_schema_and_code_give_one_verdict_on_every_variant(definition: str) -> None:
    disagreements = []
    for variant in variants(definition):
        by_schema = CORPUS.accepts(definition, variant.instance, lenient=definition == SERVER)
        by_code = code_accepts(definition, json.dumps(variant.instance).encode())
        if by_schema != by_code:
            disagreements.append((variant.violated, by_schema, by_code, variant.instance))
    assert not disagreements[:5]


def test_undeclared_members_of_server_frames_are_forgiven_and_nothing_else_is() -> None:
    forgiven = {
        variant.violated
        for variant in variants(SERVER)
        if not CORPUS.accepts(SERVER, variant.instance) and code_accepts(SERVER, json.dumps(variant.instance).encode())
    }
    closed = {keyword for keyword in CORPUS.keywords if keyword.endswith("/additionalProperties")}
    of_client_frames = {variant.violated for variant in variants(CLIENT)} & closed
    assert forgiven & closed == closed - of_client_frames
    # What a closed object refuses, the unions and lists round it refuse with it.
    assert {str(keyword).rsplit("/", 1)[1] for keyword in forgiven - closed} <= {"oneOf", "anyOf", "items"}


def test_every_keyword_of_the_schema_is_violated() -> None:
    violated = set()
    for definition in DEFINITIONS:
        for variant in variants(definition):
            if not CORPUS.accepts(definition, variant.instance):
                violated.add(variant.violated)
            if definition != EVENT and not CORPUS.accepts("#", variant.instance):
                violated.add("#/oneOf")
    assert CORPUS.keywords - violated == set()
    assert len(CORPUS.keywords) > 100


@pytest.mark.parametrize(("definition", "other"), [(CLIENT, SERVER), (SERVER, CLIENT)])
def test_no_frame_is_taken_in_the_wrong_direction(definition: str, other: str) -> None:
    for example in CORPUS.examples(definition):
        assert not CORPUS.accepts(other, example)
        assert not code_accepts(other, json.dumps(example).encode())


# --- What only bytes show ----------------------------------------------------


CAPACITY = json.dumps(CORPUS.examples("#/$defs/capacityFrame")[0])
DELIVER = json.dumps(CORPUS.examples("#/$defs/deliverFrame")[0])
CANCELLED = json.dumps(
    next(one for one in CORPUS.examples(EVENT) if one["event_type"] == "task.cancelled" and "result" not in one)
)

BYTES_ONLY: list[tuple[str, str, bytes]] = [
    ("an integer with a fraction", CLIENT, CAPACITY.replace('"capacity": 0', '"capacity": 0.0').encode()),
    ("an integer with an exponent", CLIENT, CAPACITY.replace('"capacity": 0', '"capacity": 0e0').encode()),
    ("a negative zero", CLIENT, CAPACITY.replace('"capacity": 0', '"capacity": -0').encode()),
    ("an integer with a fraction", SERVER, DELIVER.replace('"attempt": 1', '"attempt": 1.0').encode()),
    ("a name twice", CLIENT, CAPACITY.replace('"capacity": 0', '"capacity": 0, "capacity": 0').encode()),
    ("a name twice, escaped", CLIENT, CAPACITY.replace('"capacity": 0', '"capacity": 0, "c\\u0061pacity": 0').encode()),
    ("a name twice", SERVER, DELIVER.replace('"attempt": 1', '"attempt": 1, "attempt": 1').encode()),
    ("a name twice", EVENT, CANCELLED.replace("{", '{"x": 1, "x": 1, ', 1).encode()),
    ("larger than a frame", CLIENT, CAPACITY.encode() + b" " * 524_288),
    ("larger than a frame", SERVER, DELIVER.encode() + b" " * 524_288),
    ("larger than an event", EVENT, CANCELLED.encode() + b" " * 524_288),
    (
        "a result of more than 256 KiB",
        EVENT,
        CANCELLED.replace("{", '{"result": "' + "x" * 262_143 + '", ', 1).encode(),
    ),
    ("33 levels", SERVER, DELIVER.replace('"event": {}', '"event": {"x":' + "[" * 30 + "]" * 30 + "}").encode()),
    ("33 levels", EVENT, CANCELLED.replace("{", '{"x": ' + "[" * 32 + "]" * 32 + ", ", 1).encode()),
]


@pytest.mark.parametrize(
    ("definition", "data"), [row[1:] for row in BYTES_ONLY], ids=[f"{row[0]}, {row[1][8:]}" for row in BYTES_ONLY]
)
def test_what_only_bytes_show_is_refused_by_the_code_alone(definition: str, data: bytes) -> None:
    assert CORPUS.accepts(definition, json.loads(data)), "the schema has no objection, or the case proves nothing"
    assert not code_accepts(definition, data)


NO_INSTANCE: list[tuple[str, str, bytes]] = [
    ("invalid UTF-8", EVENT, CANCELLED.replace("{", '{"x": "@", ', 1).encode().replace(b"@", b"\xff")),
    ("a coded surrogate", EVENT, CANCELLED.replace("{", '{"x": "@", ', 1).encode().replace(b"@", b"\xed\xa0\x80")),
    ("half of a surrogate pair", EVENT, CANCELLED.replace("{", '{"x": "\\ud800", ', 1).encode()),
    ("half of a surrogate pair in a name", EVENT, CANCELLED.replace("{", '{"\\udc00": 1, ', 1).encode()),
    ("half of a surrogate pair", SERVER, DELIVER.replace('"event": {}', '"event": {"x": "\\ud800"}').encode()),
    ("NaN", EVENT, CANCELLED.replace("{", '{"x": NaN, ', 1).encode()),
    ("Infinity", CLIENT, CAPACITY.replace('"capacity": 0', '"capacity": Infinity').encode()),
    ("a byte order mark", CLIENT, b"\xef\xbb\xbf" + CAPACITY.encode()),
    ("UTF-16", CLIENT, CAPACITY.encode("utf-16")),
    ("two documents", CLIENT, CAPACITY.encode() * 2),
    ("nothing", CLIENT, b""),
]


@pytest.mark.parametrize(
    ("definition", "data"), [row[1:] for row in NO_INSTANCE], ids=[f"{row[0]}, {row[1][8:]}" for row in NO_INSTANCE]
)
def test_bytes_that_are_no_strict_json_are_refused(definition: str, data: bytes) -> None:
    assert not code_accepts(definition, data)


def test_the_cases_above_start_from_accepted_bytes() -> None:
    for definition, text in ((CLIENT, CAPACITY), (SERVER, DELIVER), (EVENT, CANCELLED)):
        assert code_accepts(definition, text.encode())
    assert '"capacity": 0' in CAPACITY
    assert '"attempt": 1' in DELIVER
    assert '"event": {}' in DELIVER

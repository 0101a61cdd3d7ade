"""The published schema of pulse.worker.v1 and the code give one verdict on every frame.

The corpus is made from the schema; every keyword of it is violated at least once. Three differences are meant, and each
is listed by hand. A client ignores undeclared members of server frames (seed worker-contract: an older SDK, a newer
server), so there the code is held against the schema without `additionalProperties`. Some rules show in bytes only. And
some relate two members, which a schema cannot: those are in `breaks_a_relation`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from orbit.protocol import worker_v1
from orbit.protocol.assignment_v1 import AssignedTask
from orbit.protocol.attempt_v1 import Attempt, Finish, Outcome
from orbit.protocol.errors import InvalidValue, ProtocolError
from orbit.protocol.schemas import events_schema, worker_schema
from orbit.protocol.session import ClientSession, Invalid, ServerSession
from orbit.protocol.strict_json import parse
from orbit.protocol.values import Secret, parse_counter, parse_id
from orbit.protocol.vocabulary import Body
from tests.support.schema_corpus import SchemaCorpus, Variant
from tests.support.worker_conversations import (
    INSTANCE,
    LEASE_SECRET,
    NORMALIZE,
    QUEUE,
    SESSION,
    capacity,
    hello,
    ident,
    welcome,
)

CORPUS = SchemaCorpus(Path(worker_v1.__file__).with_name("worker.schema.json"))
CLIENT, SERVER = "#/$defs/clientFrame", "#/$defs/serverFrame"
DIRECTIONS = (CLIENT, SERVER)
GREETING_ID, FIRST_ID, PENDING_ID = ident(0xD0), ident(0xD1), ident(0xD2)

# Seed worker-contract, the table of entries.
ENTRIES = {
    CLIENT: ("helloFrame", "capacityFrame", "resumeFrame", "startFrame", "renewFrame", "finishFrame"),
    SERVER: ("welcomeFrame", "assignmentFrame", "cancellationFrame", "ackFrame", "errorFrame"),
}


# --- The code's verdict ------------------------------------------------------


@cache
def code_accepts(direction: str, data: bytes) -> bool:
    """Whether some conversation exists in which the code accepts these bytes."""
    try:
        frame: Any = json.loads(data)
    except ValueError:
        frame = {}
    frame = frame if isinstance(frame, dict) else {}
    return any(_takes(session, data) for session in (_servers(frame) if direction == CLIENT else _clients(frame)))


def _takes(session: ClientSession | ServerSession, data: bytes) -> bool:
    try:
        result = session.receive(data)
    except ProtocolError:
        return False
    return not isinstance(result, Invalid)


def _id_of(frame: Any, name: str, otherwise: str) -> str:
    try:
        return parse_id(frame.get(name), name)
    except (AttributeError, InvalidValue):
        return otherwise


def _wire(name: str, session_id: str, reply_to: str, body: Body) -> bytes:
    frame = {"protocol_version": "1", "type": name, "message_id": ident(0xDD), "session_id": session_id}
    return json.dumps({**frame, "reply_to": reply_to, "body": body.to_body()}).encode()


def _server(session_id: str, *capacities: worker_v1.Capacity) -> ServerSession:
    server = ServerSession(worker_v1.VOCABULARY)
    client = ClientSession(worker_v1.VOCABULARY)
    server.receive(client.hello(hello(), GREETING_ID))
    client.receive(server.welcome(session_id, GREETING_ID, welcome()))
    for one in capacities:
        server.receive(client.request("worker.capacity", one, FIRST_ID))
        server.reply(FIRST_ID, welcome(one.sequence, one.capacity, drain=one.drain))
    return server


def _servers(frame: dict[str, Any]) -> Iterator[ServerSession]:
    """Servers that wait for a hello, for the first capacity, and for a later one."""
    if frame.get("type") == "worker.hello":
        yield ServerSession(worker_v1.VOCABULARY)
    session_id = _id_of(frame, "session_id", SESSION)
    yield _server(session_id)
    if frame.get("type") == "worker.capacity":
        yield _server(session_id, capacity(1, 0))


def _client(session_id: str, greeting: worker_v1.Hello, *capacities: worker_v1.Capacity) -> ClientSession:
    client = ClientSession(worker_v1.VOCABULARY)
    client.hello(greeting, GREETING_ID)
    welcomed = replace(welcome(), queue_id=greeting.queue_id)
    client.receive(_wire("worker.welcome", session_id, GREETING_ID, welcomed))
    for one in capacities:
        client.request("worker.capacity", one, FIRST_ID)
        confirmed = welcome(one.sequence, one.capacity, drain=one.drain)
        client.receive(_wire("ack", session_id, FIRST_ID, confirmed))
    return client


def _clients(frame: dict[str, Any]) -> Iterator[ClientSession]:
    """Clients in the conversations that the frame's type and body may belong to."""
    kind = frame.get("type")
    body = frame.get("body")
    session_id = _id_of(frame, "session_id", SESSION)
    reply_to = _id_of(frame, "reply_to", PENDING_ID)
    if kind in ("worker.welcome", "error"):
        waiting = ClientSession(worker_v1.VOCABULARY)
        instance_id, queue_id = _id_of(body, "instance_id", INSTANCE), _id_of(body, "queue_id", QUEUE)
        waiting.hello(hello(instance_id=instance_id, queue_id=queue_id), reply_to)
        yield waiting
    if kind != "ack":
        client = _client(session_id, _hello_for(body), capacity(1, 0))
        client.request("worker.resume", _attempt_of(None), reply_to)
        yield client
        return
    for name, request in _requests(body if isinstance(body, dict) else {}):
        first = () if name == "worker.capacity" and request == capacity(1, request.capacity) else (capacity(1, 0),)
        client = _client(session_id, hello(), *first)
        client.request(name, request, reply_to)
        yield client


def _hello_for(body: Any) -> worker_v1.Hello:
    """A hello that asks for the task in an assignment."""
    try:
        task = AssignedTask.parse(parse(json.dumps(body["task"]).encode(), max_bytes=2**19), lenient=True)
    except (KeyError, TypeError, ProtocolError):
        return hello()
    return hello(queue_id=task.queue_id, capabilities=(worker_v1.Capability.of(task),))


def _requests(body: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The requests that an ack with this body may answer."""
    if "receipt" in body:
        asked = _attempt_of(body["receipt"])
        yield "task.start", asked
        yield "task.renew", asked
        yield "task.finish", Finish(attempt=asked, outcome=Outcome.SUCCEEDED)
    if "sequence" in body:
        names = ("sequence", "capacity", "drain")
        try:
            data = json.dumps({name: body[name] for name in names}).encode()
            yield "worker.capacity", worker_v1.Capacity.parse(parse(data, max_bytes=1_000))
        except (KeyError, ProtocolError):
            yield "worker.capacity", capacity(1)
    yield "worker.resume", _attempt_of(body)


def _attempt_of(body: Any) -> Attempt:
    """The attempt that an answer is about, with whatever proof."""
    try:
        epoch = parse_counter(body["epoch"], "")
    except (KeyError, TypeError, InvalidValue):
        epoch = 7
    task_id, attempt_id = _id_of(body, "task_id", ident(1)), _id_of(body, "attempt_id", ident(2))
    return Attempt(task_id=task_id, attempt_id=attempt_id, epoch=epoch, lease_secret=Secret(LEASE_SECRET))


def breaks_a_relation(frame: dict[str, Any]) -> bool:
    """Whether a frame that the schema accepts breaks a rule about two of its members (seed: checked by the SDK)."""
    body = frame.get("body", {})
    if {"task", "attempt", "lease"} <= body.keys():
        task, proof, lease = body["task"], body["attempt"], body["lease"]
        return (
            task.get("retry_of") == task["task_id"]
            or task["task_id"] != proof["task_id"]
            or any(proof[name] != lease[name] for name in ("task_id", "attempt_id", "epoch"))
        )
    if {"receipt", "lease", "disposition"} <= body.keys():
        return any(body["receipt"][name] != body["lease"][name] for name in ("task_id", "attempt_id", "epoch"))
    return False


# --- The corpus --------------------------------------------------------------


@cache
def variants(direction: str) -> tuple[Variant, ...]:
    """Every variant of a direction's frames, each instance once for each keyword that it violates."""
    found = {
        (variant.violated, json.dumps(variant.instance)): variant
        for example in CORPUS.basis(direction)
        for variant in CORPUS.variants(direction, example)
    }
    return tuple(found.values())


def test_the_schema_has_every_entry_of_the_seed_and_every_object_in_it_is_closed() -> None:
    definitions = CORPUS.document["$defs"]
    for direction, names in ENTRIES.items():
        assert definitions[direction.rsplit("/", 1)[1]]["oneOf"] == [{"$ref": f"#/$defs/{name}"} for name in names]
    assert CORPUS.document["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    for name, node in definitions.items():
        assert node.get("type") != "object" or node["additionalProperties"] is False, name


def test_both_schemas_mean_the_same_by_the_same_name() -> None:
    ours, theirs = json.loads(worker_schema())["$defs"], json.loads(events_schema())["$defs"]
    shared = {"id", "counter", "secret", "time", "code", "count", "errorFrame"}
    assert {name for name in ours.keys() & theirs.keys() if ours[name] == theirs[name]} >= shared


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_what_the_schema_accepts_the_code_accepts(direction: str) -> None:
    for name in ENTRIES[direction]:
        examples = CORPUS.examples(f"#/$defs/{name}")
        assert examples
        for example in examples:
            assert CORPUS.accepts(direction, example), example
            assert CORPUS.accepts("#", example), example
            assert code_accepts(direction, json.dumps(example).encode()), example


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_schema_and_code_give_one_verdict_on_every_variant(direction: str) -> None:
    disagreements = []
    for variant in variants(direction):
        by_schema = CORPUS.accepts(direction, variant.instance, lenient=direction == SERVER)
        if by_schema and breaks_a_relation(variant.instance):
            by_schema = False
        by_code = code_accepts(direction, json.dumps(variant.instance).encode())
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
    of_server_frames = {variant.violated for variant in variants(SERVER)} & closed
    assert forgiven & closed == of_server_frames
    # What a closed object refuses, the unions and lists round it refuse with it.
    assert {str(keyword).rsplit("/", 1)[1] for keyword in forgiven - closed} <= {"oneOf", "anyOf", "items"}


def test_every_keyword_of_the_schema_is_violated() -> None:
    violated = set()
    for direction in DIRECTIONS:
        for variant in variants(direction):
            if not CORPUS.accepts(direction, variant.instance):
                violated.add(variant.violated)
            if not CORPUS.accepts("#", variant.instance):
                violated.add("#/oneOf")
    assert CORPUS.keywords - violated == set()
    assert len(CORPUS.keywords) > 200


@pytest.mark.parametrize(("direction", "other"), [(CLIENT, SERVER), (SERVER, CLIENT)])
def test_no_frame_is_taken_in_the_wrong_direction(direction: str, other: str) -> None:
    for example in CORPUS.examples(direction):
        assert not CORPUS.accepts(other, example)
        assert not code_accepts(other, json.dumps(example).encode())


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_frame_is_an_entry_of_its_own(direction: str) -> None:
    for name in ENTRIES[direction]:
        for example in CORPUS.examples(f"#/$defs/{name}"):
            taken_by = [other for other in ENTRIES[direction] if CORPUS.accepts(f"#/$defs/{other}", example)]
            assert taken_by == [name]


# --- The seed's cases --------------------------------------------------------


def frame_of(entry: str, **body: Any) -> dict[str, Any]:
    """The first example of an entry with members of its body set, or removed where the value is `...`."""
    frame: dict[str, Any] = json.loads(json.dumps(CORPUS.examples(f"#/$defs/{entry}")[0]))
    changed = {**frame["body"], **body}
    return {**frame, "body": {name: value for name, value in changed.items() if value is not ...}}


def verdict(direction: str, frame: dict[str, Any]) -> bool:
    """The one verdict of schema and code."""
    by_schema = CORPUS.accepts(direction, frame)
    assert by_schema == CORPUS.accepts("#", frame)
    assert code_accepts(direction, json.dumps(frame).encode()) == by_schema
    return by_schema


CAPABILITY = {"handler": "text.normalize", "handler_version": "v1", "payload_version": "v1"}
SECRET = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
TOP = "18446744073709551615"

SEED_CASES: list[tuple[str, str, dict[str, Any], bool]] = [
    # An alias of a member inside an array, in place of it and beside it.
    ("helloFrame", "capabilities", {"capabilities": [CAPABILITY]}, True),
    ("helloFrame", "alias instead", {"capabilities": [{"Handler": "a", **dict(list(CAPABILITY.items())[1:])}]}, False),
    ("helloFrame", "alias beside", {"capabilities": [{**CAPABILITY, "Handler": "a"}]}, False),
    ("helloFrame", "alias beside, second item", {"capabilities": [CAPABILITY, {**CAPABILITY, "HANDLER": "a"}]}, False),
    ("helloFrame", "two capabilities", {"capabilities": [CAPABILITY, {**CAPABILITY, "handler": "b"}]}, True),
    ("helloFrame", "a capability twice", {"capabilities": [CAPABILITY, CAPABILITY]}, False),
    ("helloFrame", "no capability", {"capabilities": []}, False),
    ("helloFrame", "64 capabilities", {"capabilities": [{**CAPABILITY, "handler": f"h{i}"} for i in range(64)]}, True),
    ("helloFrame", "65 capabilities", {"capabilities": [{**CAPABILITY, "handler": f"h{i}"} for i in range(65)]}, False),
    ("helloFrame", "handler of 128", {"capabilities": [{**CAPABILITY, "handler": "h" * 128}]}, True),
    ("helloFrame", "handler of 129", {"capabilities": [{**CAPABILITY, "handler": "h" * 129}]}, False),
    ("helloFrame", "version of 65", {"capabilities": [{**CAPABILITY, "payload_version": "v" * 65}]}, False),
    # What is required must be there, zero and false included.
    ("capacityFrame", "no capacity", {"capacity": ...}, False),
    ("capacityFrame", "no drain", {"drain": ...}, False),
    ("capacityFrame", "no sequence", {"sequence": ...}, False),
    ("capacityFrame", "zero and false", {"capacity": 0, "drain": False}, True),
    # The borders of capacity.
    ("helloFrame", "capacity 0", {"capacity": 0}, False),
    ("helloFrame", "capacity 1", {"capacity": 1}, True),
    ("helloFrame", "capacity 1000", {"capacity": 1000}, True),
    ("helloFrame", "capacity 1001", {"capacity": 1001}, False),
    ("capacityFrame", "capacity -1", {"capacity": -1}, False),
    ("capacityFrame", "capacity 1000", {"capacity": 1000}, True),
    ("capacityFrame", "capacity 1001", {"capacity": 1001}, False),
    ("capacityFrame", "capacity as text", {"capacity": "4"}, False),
    # Counters.
    ("startFrame", "the largest epoch", {"epoch": TOP}, True),
    ("startFrame", "one more", {"epoch": "18446744073709551616"}, False),
    ("startFrame", "21 digits", {"epoch": "100000000000000000000"}, False),
    ("startFrame", "a leading zero", {"epoch": "07"}, False),
    ("startFrame", "a sign", {"epoch": "+7"}, False),
    ("startFrame", "zero", {"epoch": "0"}, False),
    ("startFrame", "a number", {"epoch": 7}, False),
    ("startFrame", "nothing", {"epoch": ""}, False),
    # Secrets.
    ("renewFrame", "a secret", {"lease_secret": SECRET}, True),
    ("renewFrame", "42 characters", {"lease_secret": SECRET[1:]}, False),
    ("renewFrame", "44 characters", {"lease_secret": SECRET + "A"}, False),
    ("renewFrame", "padded", {"lease_secret": SECRET + "="}, False),
    ("renewFrame", "not canonical", {"lease_secret": SECRET[:-1] + "9"}, False),
    ("renewFrame", "not of the URL's alphabet", {"lease_secret": "+" + SECRET[1:]}, False),
    ("renewFrame", "with a line end", {"lease_secret": SECRET + "\n"}, False),
    ("helloFrame", "instance secret not canonical", {"instance_secret": SECRET[:-1] + "B"}, False),
    # Results and what they go with.
    ("finishFrame", "success", {"error_code": ..., "retryable": ...}, True),
    ("finishFrame", "success without a result", {"result": ..., "error_code": ..., "retryable": ...}, True),
    ("finishFrame", "success, empty code", {"error_code": "", "retryable": False}, True),
    ("finishFrame", "success, a code", {"error_code": "X"}, False),
    ("finishFrame", "success, null code", {"error_code": None}, False),
    ("finishFrame", "success, retryable", {"retryable": True}, False),
    ("finishFrame", "null result", {"result": None}, False),
    ("finishFrame", "false is a result", {"result": False}, True),
    ("finishFrame", "unknown outcome", {"outcome": "succeeded"}, False),
    *(
        ("finishFrame", f"{outcome}, {what}", {"outcome": outcome, **members}, good)
        for outcome in ("FAILED", "UNKNOWN", "CANCELLED")
        for what, members, good in (
            ("no code", {"error_code": ..., "retryable": ...}, False),
            ("empty code", {"error_code": "", "retryable": ...}, False),
            ("a code and a result", {"error_code": "TIMED_OUT", "retryable": ...}, True),
            ("a code alone", {"error_code": "TIMED_OUT", "result": ..., "retryable": ...}, True),
            ("a sentence for a code", {"error_code": "it timed out", "retryable": ...}, False),
            ("not retryable", {"error_code": "TIMED_OUT", "retryable": False}, True),
            ("retryable", {"error_code": "TIMED_OUT", "retryable": True}, outcome == "FAILED"),
            ("retryable null", {"error_code": "TIMED_OUT", "retryable": None}, False),
        )
    ),
    # Dates.
    ("cancellationFrame", "a leap day", {"cancel_requested_at": "2028-02-29T00:00:00Z"}, True),
    ("cancellationFrame", "no leap day", {"cancel_requested_at": "2026-02-29T00:00:00Z"}, False),
    ("cancellationFrame", "30 February", {"cancel_requested_at": "2026-02-30T08:15:30Z"}, False),
    ("cancellationFrame", "seven digits", {"cancel_requested_at": "2026-11-30T08:15:30.1234567Z"}, False),
    ("cancellationFrame", "an offset", {"cancel_requested_at": "2026-11-30T08:15:30+00:00"}, False),
    # Welcomes.
    ("welcomeFrame", "a sequence before the first capacity", {"sequence": "1"}, False),
]


@pytest.mark.parametrize(
    ("entry", "body", "good"),
    [(entry, body, good) for entry, _, body, good in SEED_CASES],
    ids=[f"{entry}: {what}" for entry, what, _, _ in SEED_CASES],
)
def test_the_cases_of_the_seed(entry: str, body: dict[str, Any], good: bool) -> None:
    direction = next(one for one in DIRECTIONS if entry in ENTRIES[one])
    assert verdict(direction, frame_of(entry, **body)) is good


@pytest.mark.parametrize(
    ("task", "good"),
    [
        ({}, True),
        ({"concurrency_key": ...}, False),
        ({"concurrency_token": ...}, False),
        ({"concurrency_key": ..., "concurrency_token": ...}, True),
        ({"concurrency_token": "0"}, False),
        ({"concurrency_token": 1}, False),
        ({"concurrency_key": ""}, False),
        ({"concurrency_key": "a b"}, False),
        ({"concurrency_key": "k" * 128}, True),
        ({"concurrency_key": "k" * 129}, False),
        ({"priority": 0}, True),
        ({"priority": 9}, True),
        ({"priority": 10}, False),
        ({"priority": -1}, False),
        ({"priority": ...}, True),
        ({"effect_uncertain": True}, True),
        ({"effect_uncertain": None}, False),
        ({"payload": None}, True),
        ({"payload": ...}, False),
        ({"attempt_number": 0}, False),
        ({"retry_of": ...}, True),
        ({"retry_of": "x"}, False),
    ],
)
def test_the_cases_of_the_seed_in_an_assigned_task(task: dict[str, Any], good: bool) -> None:
    whole = {**frame_of("assignmentFrame")["body"]["task"], **task}
    whole = {name: value for name, value in whole.items() if value is not ...}
    assert verdict(SERVER, frame_of("assignmentFrame", task=whole)) is good


@pytest.mark.parametrize("entry", ENTRIES[CLIENT])
@pytest.mark.parametrize("members", [{"reply_to": ""}, {"reply_to": ident(1)}, {"error": None}, {"error": {}}])
def test_a_request_has_no_member_of_an_answer_in_any_form(entry: str, members: dict[str, Any]) -> None:
    assert verdict(CLIENT, frame_of(entry))
    assert not verdict(CLIENT, {**frame_of(entry), **members})


@pytest.mark.parametrize("entry", ENTRIES[CLIENT])
def test_every_request_but_the_hello_names_its_session(entry: str) -> None:
    frame = frame_of(entry)
    if entry == "helloFrame":
        assert not verdict(CLIENT, {**frame, "session_id": SESSION})
    else:
        del frame["session_id"]
        assert not verdict(CLIENT, frame)


@pytest.mark.parametrize("entry", ["assignmentFrame", "cancellationFrame"])
def test_a_push_answers_nothing(entry: str) -> None:
    assert verdict(SERVER, frame_of(entry))
    assert not verdict(SERVER, {**frame_of(entry), "reply_to": ident(1)})


# --- What relates two members ------------------------------------------------


def _assigned(task: dict[str, Any] | None = None, **parts: dict[str, Any]) -> dict[str, Any]:
    body = frame_of("assignmentFrame")["body"]
    changed = {name: {**body[name], **(parts | {"task": task or {}}).get(name, {})} for name in body}
    return frame_of("assignmentFrame", **changed)


def _answered(**parts: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = CORPUS.examples("#/$defs/resultApplied")[0]
    frame = {**frame_of("ackFrame"), "body": result}
    return {**frame, "body": {**result, **{name: {**result[name], **members} for name, members in parts.items()}}}


RELATIONS = {
    "a task that repeats itself": _assigned({"retry_of": ident(0x123), "task_id": ident(0x123)}),
    "a proof of another task": _assigned(attempt={"task_id": ident(1)}),
    "a lease of another task": _assigned(lease={"task_id": ident(1)}),
    "a lease of another attempt": _assigned(lease={"attempt_id": ident(1)}),
    "a lease of another epoch": _assigned(lease={"epoch": "8"}),
    "a receipt of another task": _answered(receipt={"task_id": ident(1)}),
    "a receipt of another attempt": _answered(receipt={"attempt_id": ident(1)}),
    "a current lease of another epoch": _answered(lease={"epoch": "8"}),
}


@pytest.mark.parametrize("frame", RELATIONS.values(), ids=RELATIONS)
def test_what_relates_two_members_is_refused_by_the_code_alone(frame: dict[str, Any]) -> None:
    assert code_accepts(SERVER, json.dumps(_assigned()).encode())
    assert code_accepts(SERVER, json.dumps(_answered()).encode())
    assert CORPUS.accepts(SERVER, frame)
    assert not code_accepts(SERVER, json.dumps(frame).encode())


# --- What only bytes show ----------------------------------------------------


CAPACITY = json.dumps(frame_of("capacityFrame", capacity=4))
HELLO = json.dumps(frame_of("helloFrame"))
FINISH = json.dumps(frame_of("finishFrame", result="@", error_code=..., retryable=...))
ASSIGN = json.dumps(_assigned({"payload": "@", "attempt_number": 1}))


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


BYTES_ONLY: list[tuple[str, str, str]] = [
    ("an integer with a fraction", CLIENT, CAPACITY.replace('"capacity": 4', '"capacity": 4.0')),
    ("an integer with an exponent", CLIENT, CAPACITY.replace('"capacity": 4', '"capacity": 4e0')),
    ("a negative zero", CLIENT, CAPACITY.replace('"capacity": 4', '"capacity": -0')),
    ("an integer with a fraction", SERVER, ASSIGN.replace('"attempt_number": 1', '"attempt_number": 1.0')),
    ("a name twice", CLIENT, CAPACITY.replace('"capacity": 4', '"capacity": 4, "capacity": 4')),
    ("a name twice, escaped", CLIENT, CAPACITY.replace('"capacity": 4', '"capacity": 4, "c\\u0061pacity": 4')),
    ("a name twice in an array", CLIENT, HELLO.replace('{"handler":', '{"handler": "text.normalize", "handler":')),
    ("a name twice in a result", CLIENT, FINISH.replace('"@"', '{"x": 1, "x": 1}')),
    ("a name twice in a payload", SERVER, ASSIGN.replace('"@"', '{"x": 1, "x": 1}')),
    ("a larger frame", CLIENT, CAPACITY + " " * 524_288),
    ("a larger frame", SERVER, ASSIGN + " " * 524_288),
    ("a result of 256 KiB and one byte", CLIENT, FINISH.replace("@", "x" * (262_144 - 1))),
    ("as many characters, more bytes", CLIENT, FINISH.replace("@", "\u4e2d" * 100_000)),
    ("a result of 29 levels", CLIENT, FINISH.replace('"@"', nested(29))),
    ("33 levels", CLIENT, FINISH.replace('"@"', nested(31))),
    ("33 levels", SERVER, ASSIGN.replace('"@"', nested(30))),
]


@pytest.mark.parametrize(
    ("direction", "text"), [row[1:] for row in BYTES_ONLY], ids=[f"{row[0]}, {row[1][8:]}" for row in BYTES_ONLY]
)
def test_what_only_bytes_show_is_refused_by_the_code_alone(direction: str, text: str) -> None:
    assert CORPUS.accepts(direction, json.loads(text)), "the schema has no objection, or the case proves nothing"
    assert not code_accepts(direction, text.encode())


ACCEPTED: list[tuple[str, str]] = [
    (CLIENT, CAPACITY),
    (CLIENT, HELLO),
    (CLIENT, FINISH),
    (SERVER, ASSIGN),
    (CLIENT, CAPACITY + " " * (524_288 - len(CAPACITY))),
    (CLIENT, FINISH.replace("@", "x" * (262_144 - 2))),
    (CLIENT, FINISH.replace('"@"', nested(28))),
    (SERVER, ASSIGN.replace('"@"', nested(29))),
    # Numbers keep their text; their range is the server's own last check.
    (CLIENT, FINISH.replace('"@"', "1e99999")),
]


@pytest.mark.parametrize(("direction", "text"), ACCEPTED)
def test_the_cases_above_start_from_accepted_bytes(direction: str, text: str) -> None:
    assert code_accepts(direction, text.encode())


NO_INSTANCE: list[tuple[str, str, bytes]] = [
    ("invalid UTF-8", CLIENT, FINISH.encode().replace(b"@", b"\xff")),
    ("a coded surrogate", CLIENT, FINISH.encode().replace(b"@", b"\xed\xa0\x80")),
    ("half of a surrogate pair", CLIENT, FINISH.replace("@", "\\ud800").encode()),
    ("half of a surrogate pair in a name", CLIENT, FINISH.replace('"@"', '{"\\udc00": 1}').encode()),
    ("half of a surrogate pair", SERVER, ASSIGN.replace("@", "\\udfff").encode()),
    ("NaN", CLIENT, FINISH.replace('"@"', "NaN").encode()),
    ("Infinity", CLIENT, CAPACITY.replace('"capacity": 4', '"capacity": Infinity').encode()),
    ("a byte order mark", CLIENT, b"\xef\xbb\xbf" + CAPACITY.encode()),
    ("UTF-16", CLIENT, CAPACITY.encode("utf-16")),
    ("two documents", CLIENT, CAPACITY.encode() * 2),
    ("nothing", CLIENT, b""),
]


@pytest.mark.parametrize(
    ("direction", "data"), [row[1:] for row in NO_INSTANCE], ids=[f"{row[0]}, {row[1][8:]}" for row in NO_INSTANCE]
)
def test_bytes_that_are_no_strict_json_are_refused(direction: str, data: bytes) -> None:
    assert not code_accepts(direction, data)


def test_the_examples_are_of_what_this_file_speaks_about() -> None:
    assert CORPUS.examples("#/$defs/capability") == [CAPABILITY] == [NORMALIZE.to_body()]
    assert '"capacity": 4' in CAPACITY
    assert '"attempt_number": 1' in ASSIGN
    assert {"result", "outcome"} <= json.loads(FINISH)["body"].keys()

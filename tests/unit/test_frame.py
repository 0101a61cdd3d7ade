"""The envelope: which members a frame of each direction has, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from orbit.protocol.errors import InvalidJSON, InvalidValue
from orbit.protocol.frame import Direction, Frame, WireError, decode, encode
from orbit.protocol.limits import Limits

LIMITS = Limits()
ONE, TWO, THREE = "1" * 32, "2" * 32, "3" * 32

REQUEST: dict[str, Any] = {
    "protocol_version": "1",
    "type": "event.ack",
    "message_id": ONE,
    "session_id": TWO,
    "body": {"a": [True]},
}
ANSWER: dict[str, Any] = {**REQUEST, "type": "ack", "reply_to": THREE}
FAILURE: dict[str, Any] = {
    "protocol_version": "1",
    "type": "error",
    "message_id": ONE,
    "error": {"code": "NOT_FOUND", "message": "no such subscription"},
}


def read(members: Any, direction: Direction, *, lenient: bool = False) -> Frame:
    data = members if isinstance(members, bytes) else json.dumps(members).encode()
    return decode(data, direction=direction, lenient=lenient, limits=LIMITS)


def test_a_request_is_read_and_written() -> None:
    frame = read(REQUEST, Direction.CLIENT)
    assert frame == Frame(type="event.ack", message_id=ONE, session_id=TWO, body={"a": [True]})
    assert encode(frame, limits=LIMITS) == (
        b'{"body":{"a":[true]},"message_id":"11111111111111111111111111111111","protocol_version":"1",'
        b'"session_id":"22222222222222222222222222222222","type":"event.ack"}'
    )


def test_an_answer_is_read_and_written() -> None:
    frame = read(ANSWER, Direction.SERVER)
    assert frame == Frame(type="ack", message_id=ONE, session_id=TWO, reply_to=THREE, body={"a": [True]})
    assert json.loads(encode(frame, limits=LIMITS)) == ANSWER


def test_an_error_is_read_and_written() -> None:
    frame = read(FAILURE, Direction.SERVER)
    assert frame == Frame(type="error", message_id=ONE, error=WireError("NOT_FOUND", "no such subscription"))
    assert json.loads(encode(frame, limits=LIMITS)) == FAILURE
    newer = {**FAILURE, "error": {"code": "OF_A_NEWER_SERVER", "message": "x" * 1_000}}
    assert read(newer, Direction.SERVER).error == WireError("OF_A_NEWER_SERVER", "x" * 1_000)


def test_raw_text_is_spliced_into_a_body_as_it_is() -> None:
    frame = Frame(type="event.deliver", message_id=ONE, body={"event": msgspec.Raw(b'{"z":1.10,"a":-0}')})
    assert b'{"event":{"z":1.10,"a":-0}}' in encode(frame, limits=LIMITS)


WRONG: list[tuple[str, dict[str, Any], Direction, str]] = [
    *(
        (f"{direction} without {name}", {**base, name: ...}, direction, name)
        for base, direction in ((REQUEST, Direction.CLIENT), (ANSWER, Direction.SERVER))
        for name in ("protocol_version", "type", "message_id", "body")
    ),
    ("version 2", {**REQUEST, "protocol_version": "2"}, Direction.CLIENT, "protocol_version"),
    ("version as a number", {**REQUEST, "protocol_version": 1}, Direction.CLIENT, "protocol_version"),
    ("version null", {**REQUEST, "protocol_version": None}, Direction.CLIENT, "protocol_version"),
    ("type null", {**REQUEST, "type": None}, Direction.CLIENT, "type"),
    ("type with capitals", {**REQUEST, "type": "Event.ack"}, Direction.CLIENT, "type"),
    ("type with a line end", {**REQUEST, "type": "event.ack\n"}, Direction.CLIENT, "type"),
    ("message_id of 31", {**REQUEST, "message_id": "1" * 31}, Direction.CLIENT, "message_id"),
    ("message_id null", {**REQUEST, "message_id": None}, Direction.CLIENT, "message_id"),
    ("session_id null", {**REQUEST, "session_id": None}, Direction.CLIENT, "session_id"),
    ("session_id empty", {**REQUEST, "session_id": ""}, Direction.CLIENT, "session_id"),
    ("body null", {**REQUEST, "body": None}, Direction.CLIENT, "body"),
    ("body a list", {**REQUEST, "body": []}, Direction.CLIENT, "body"),
    ("body a string", {**ANSWER, "body": "{}"}, Direction.SERVER, "body"),
    # What only a server's frame has, a client's has in no form.
    ("request with reply_to", {**REQUEST, "reply_to": THREE}, Direction.CLIENT, "frame"),
    ("request with empty reply_to", {**REQUEST, "reply_to": ""}, Direction.CLIENT, "frame"),
    ("request with null error", {**REQUEST, "error": None}, Direction.CLIENT, "frame"),
    ("request with an alias", {**REQUEST, "Type": "event.ack"}, Direction.CLIENT, "frame"),
    ("an error from a client", {**FAILURE}, Direction.CLIENT, "frame"),
    ("undeclared member", {**ANSWER, "trace": "x"}, Direction.SERVER, "frame"),
    ("reply_to null", {**ANSWER, "reply_to": None}, Direction.SERVER, "reply_to"),
    ("ack with an error", {**ANSWER, "error": FAILURE["error"]}, Direction.SERVER, "error"),
    ("ack with a null error", {**ANSWER, "error": None}, Direction.SERVER, "error"),
    ("error with a body", {**FAILURE, "body": {}}, Direction.SERVER, "body"),
    ("error without error", {**FAILURE, "error": ...}, Direction.SERVER, "error"),
    ("error null", {**FAILURE, "error": None}, Direction.SERVER, "error"),
    ("error without code", {**FAILURE, "error": {"message": "m"}}, Direction.SERVER, "error.code"),
    ("error without message", {**FAILURE, "error": {"code": "C"}}, Direction.SERVER, "error.message"),
    (
        "error code in small letters",
        {**FAILURE, "error": {"code": "c", "message": "m"}},
        Direction.SERVER,
        "error.code",
    ),
    ("error message empty", {**FAILURE, "error": {"code": "C", "message": ""}}, Direction.SERVER, "error.message"),
    ("error message null", {**FAILURE, "error": {"code": "C", "message": None}}, Direction.SERVER, "error.message"),
    (
        "error message too long",
        {**FAILURE, "error": {"code": "C", "message": "x" * 1_001}},
        Direction.SERVER,
        "error.message",
    ),
    ("error with more", {**FAILURE, "error": {**FAILURE["error"], "id": 1}}, Direction.SERVER, "error"),
]


@pytest.mark.parametrize(("members", "direction", "path"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_a_wrong_envelope_is_refused_by_member(members: dict[str, Any], direction: Direction, path: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        read({name: value for name, value in members.items() if value is not ...}, direction)
    assert caught.value.path == path


@pytest.mark.parametrize("data", [b"[]", b"null", b'"ack"', b"1"])
def test_a_frame_is_an_object(data: bytes) -> None:
    with pytest.raises(InvalidValue, match="frame: must be an object"):
        read(data, Direction.SERVER)


def test_lenient_reading_ignores_undeclared_members() -> None:
    frame = read({**ANSWER, "trace": {"deep": [1]}}, Direction.SERVER, lenient=True)
    assert frame == read(ANSWER, Direction.SERVER)
    more = {**FAILURE, "retry_after_s": 3, "error": {**FAILURE["error"], "request_id": ONE}}
    assert read(more, Direction.SERVER, lenient=True) == read(FAILURE, Direction.SERVER)


@pytest.mark.parametrize(
    ("members", "path"),
    [
        row[1::2]
        for row in WRONG
        if row[2] is Direction.SERVER and row[0] not in ("undeclared member", "error with more")
    ],
)
def test_lenient_reading_refuses_everything_else(members: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        read({name: value for name, value in members.items() if value is not ...}, Direction.SERVER, lenient=True)
    assert caught.value.path == path


def test_frames_are_strict_json_of_bounded_size_and_depth() -> None:
    with pytest.raises(InvalidJSON, match="occurs twice"):
        read(b'{"type":"ack","type":"ack"}', Direction.SERVER)
    with pytest.raises(InvalidJSON, match="larger than the limit"):
        read(b" " * (LIMITS.frame_bytes + 1), Direction.SERVER)
    with pytest.raises(InvalidJSON, match="nested more than 32"):
        read(b"[" * 33 + b"]" * 33, Direction.SERVER)


def test_a_frame_that_is_too_large_is_not_sent() -> None:
    def frame(length: int) -> Frame:
        return Frame(type="event.deliver", message_id=ONE, session_id=TWO, body={"event": "x" * length})

    room = LIMITS.frame_bytes - len(encode(frame(0), limits=LIMITS))
    assert len(encode(frame(room), limits=LIMITS)) == 524_288
    with pytest.raises(InvalidValue, match="frame: is larger than 524288 bytes"):
        encode(frame(room + 1), limits=LIMITS)


def test_reprs_show_neither_bodies_nor_messages() -> None:
    frame = Frame(type="ack", message_id=ONE, body={"lease_secret": "hunter2"}, error=WireError("CODE", "hunter2"))
    assert "hunter2" not in repr(frame)
    assert "CODE" in repr(frame)

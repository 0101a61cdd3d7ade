"""The relay's reading of HTTP heads and WebSocket frames: hand-written bytes, every split."""

from __future__ import annotations

import pytest

from toxiproxy.packets import ProtocolViolation
from toxiproxy.websocket import (
    MAX_HEAD,
    Correspondence,
    HeadReader,
    Message,
    MessageReader,
    asks_for_websocket,
    header,
    status_of,
    without_extensions,
)

HEAD = (
    b"GET /v1/events HTTP/1.1\r\nHost: x\r\nupgrade: WebSocket\r\n"
    b"Sec-WebSocket-Extensions: permessage-deflate\r\nAuthorization: Bearer t\r\nSec-WebSocket-Protocol: a.v1\r\n\r\n"
)
# RFC 6455, section 5.7: "Hello" unmasked, masked, and in two fragments.
HELLO = bytes.fromhex("810548656c6c6f")
MASKED_HELLO = bytes.fromhex("818537fa213d7f9f4d5158")
HEL, LO = bytes.fromhex("010348656c"), bytes.fromhex("80026c6f")
PING = bytes.fromhex("890548656c6c6f")
ACK = b'\x81\x30{"type":"ack","message_id":"s1","reply_to":"c1"}'


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_a_head_is_found_whatever_the_pieces(size: int) -> None:
    reader, stream, found = HeadReader(), HEAD + b"more", None
    for at in range(0, len(stream), size):
        found = reader.feed(stream[at : at + size])
        if found is not None:
            break
    assert found is not None
    assert found[0] == HEAD
    assert b"more".startswith(found[1])


def test_a_head_has_a_bound() -> None:
    reader = HeadReader()
    assert reader.feed(b"x" * MAX_HEAD) is None
    assert reader.rest() == b"x" * MAX_HEAD
    with pytest.raises(ProtocolViolation):
        reader.feed(b"x")


def test_a_request_for_a_websocket_is_known_by_its_header() -> None:
    assert asks_for_websocket(HEAD)
    assert not asks_for_websocket(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert not asks_for_websocket(b"GET / HTTP/1.1\r\nUpgrade: h2c\r\n\r\n")
    assert header(HEAD, "sec-websocket-protocol") == "a.v1"
    assert header(HEAD, "Origin") == ""


def test_only_the_offer_of_extensions_is_taken_out() -> None:
    assert without_extensions(HEAD) == HEAD.replace(b"Sec-WebSocket-Extensions: permessage-deflate\r\n", b"")


def test_the_status_of_an_answer() -> None:
    assert status_of(b"HTTP/1.1 101 Switching Protocols\r\n\r\n") == 101
    with pytest.raises(ProtocolViolation):
        status_of(b"SSH-2.0-x\r\n\r\n")


@pytest.mark.parametrize("size", range(1, 12))
def test_messages_keep_their_bytes_whatever_the_pieces(size: int) -> None:
    reader = MessageReader(masked=False)
    stream = ACK + HELLO + PING + HEL + PING + LO
    messages = [m for at in range(0, len(stream), size) for m in reader.feed(stream[at : at + size])]
    assert messages == [
        Message(ACK, "ack", "s1", "c1"),
        Message(HELLO, "(text)", None, None),
        Message(PING, "(ping)", None, None),
        Message(PING, "(ping)", None, None),
        Message(HEL + LO, "(text)", None, None),
    ]


def test_a_masked_message_keeps_its_mask() -> None:
    assert MessageReader(masked=True).feed(MASKED_HELLO) == [Message(MASKED_HELLO, "(text)", None, None)]


@pytest.mark.parametrize(
    ("payload", "name"),
    [
        (b'{"type":"event.ack"}', "event.ack"),
        (b'{"type":"Secret Words"}', "(text)"),
        (b'{"type":1}', "(text)"),
        (b"[]", "(text)"),
        (b"{", "(text)"),
        (b'{"type":"' + b"a" * 65 + b'"}', "(text)"),
    ],
)
def test_a_message_is_named_by_its_type_or_not_at_all(payload: bytes, name: str) -> None:
    (message,) = MessageReader(masked=False).feed(b"\x81" + bytes([len(payload)]) + payload)
    assert message.type == name


def test_other_frames_have_names_of_their_own() -> None:
    messages = MessageReader(masked=False).feed(b"\x82\x01\x00" + b"\x8a\x00" + b"\x88\x02\x03\xe8")
    assert [m.type for m in messages] == ["(binary)", "(pong)", "(close)"]


@pytest.mark.parametrize(
    ("frame", "masked"),
    [(b"\x83\x00", False), (b"\xc1\x00", False), (b"\x09\x00", False), (HELLO, True), (MASKED_HELLO, False)],
    ids=["opcode", "reserved bit", "fragmented ping", "mask missing", "mask not allowed"],
)
def test_what_is_no_frame_is_refused(frame: bytes, masked: bool) -> None:
    with pytest.raises(ProtocolViolation):
        MessageReader(masked=masked).feed(frame)


def test_a_reply_is_known_by_what_it_answers() -> None:
    letters = Correspondence()
    assert letters.note(Message(b"", "event.ack", "c1", None), from_client=True) is None
    assert letters.note(Message(b"", "ack", "s1", "c1"), from_client=False) == "event.ack"
    assert letters.note(Message(b"", "ack", "s2", "s1"), from_client=False) is None
    assert letters.note(Message(b"", "ack", "c2", "s1"), from_client=True) == "ack"


def test_old_messages_are_forgotten() -> None:
    letters = Correspondence()
    for number in range(1025):
        letters.note(Message(b"", "event.ack", f"c{number}", None), from_client=True)
    assert letters.note(Message(b"", "ack", None, "c0"), from_client=False) is None
    assert letters.note(Message(b"", "ack", None, "c1"), from_client=False) == "event.ack"

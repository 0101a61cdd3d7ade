"""A WebSocket connection as the relay sees it, sans I/O: bytes in, heads and messages out, bytes kept as they came.

Frames are read with websockets' own parser (RFC 6455, section 5.2) and passed on unchanged. The relay removes the offer
of extensions from the client's request, so that no message is compressed.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from websockets.exceptions import ProtocolError
from websockets.frames import Frame, Opcode
from websockets.streams import StreamReader

from toxiproxy.packets import ProtocolViolation

if TYPE_CHECKING:
    from collections.abc import Generator

MAX_HEAD: Final = 64 * 1024
_IDS_KEPT: Final = 1024
_END_OF_HEAD: Final = b"\r\n\r\n"
_NAME: Final = re.compile(r"[a-z0-9_.-]{1,64}")
_DATA: Final = frozenset({Opcode.TEXT, Opcode.BINARY})


class HeadReader:
    """Wait for the head of an HTTP/1.1 message; what comes behind it is kept apart."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> tuple[bytes, bytes] | None:
        """Return the head with its blank line, and what follows, once they are there.

        Raises ProtocolViolation when the head is longer than MAX_HEAD.
        """
        self._buffer += data
        head, end, rest = self._buffer.partition(_END_OF_HEAD)
        if end:
            return head + end, rest
        if len(self._buffer) > MAX_HEAD:
            raise ProtocolViolation(f"the head of an HTTP message is longer than {MAX_HEAD} bytes")
        return None

    def rest(self) -> bytes:
        """What was fed so far."""
        return self._buffer


def header(head: bytes, name: str) -> str:
    """The value of a header field, or an empty string."""
    for line in head.split(b"\r\n")[1:]:
        field, _, value = line.partition(b":")
        if field.strip().lower() == name.lower().encode("ascii"):
            return value.strip().decode("latin-1")
    return ""


def asks_for_websocket(head: bytes) -> bool:
    """Whether a request head asks for a WebSocket."""
    return header(head, "Upgrade").lower() == "websocket"


def without_extensions(head: bytes) -> bytes:
    """A request head without its offer of WebSocket extensions."""
    lines = head.split(b"\r\n")
    return b"\r\n".join(line for line in lines if not line.lower().startswith(b"sec-websocket-extensions:"))


def status_of(head: bytes) -> int:
    """The status of a response head. Raises ProtocolViolation."""
    match = re.match(rb"HTTP/1\.[01] (\d{3})", head)
    if match is None:
        raise ProtocolViolation("the server's answer is not HTTP/1.1")
    return int(match[1])


@dataclass(frozen=True, slots=True)
class Message:
    """A whole message, or a control frame: its bytes on the wire and what the envelope says.

    `type` is the JSON text's `type` member; `(ping)`, `(pong)`, `(close)`, `(binary)` or `(text)` for what has none.
    """

    raw: bytes
    type: str
    message_id: str | None
    reply_to: str | None


class MessageReader:
    """Cut one direction of an open WebSocket into messages."""

    def __init__(self, *, masked: bool) -> None:
        """`masked` says that this is the client's direction."""
        self._masked = masked
        self._stream = StreamReader()
        self._raw = bytearray()
        self._frame = self._parse()
        self._parts: list[bytes] = []
        self._message = bytearray()
        self._opcode = Opcode.TEXT

    def feed(self, data: bytes) -> list[Message]:
        """Take the next bytes; return the messages they complete. A control frame is never held up by fragments.

        Raises ProtocolViolation for what is no WebSocket frame.
        """
        self._raw += data
        self._stream.feed_data(data)
        messages: list[Message] = []
        while frame := self._next():
            consumed = len(self._raw) - len(self._stream.buffer)
            raw = bytes(self._raw[:consumed])
            del self._raw[:consumed]
            message = self._take(frame, raw)
            if message is not None:
                messages.append(message)
        return messages

    def _parse(self) -> Generator[None, None, Frame]:
        return Frame.parse(self._stream.read_exact, mask=self._masked)

    def _next(self) -> Frame | None:
        try:
            next(self._frame)
        except StopIteration as end:
            self._frame = self._parse()
            frame: Frame = end.value
            return frame
        except ProtocolError as error:
            raise ProtocolViolation("a WebSocket frame is malformed") from error
        return None

    def _take(self, frame: Frame, raw: bytes) -> Message | None:
        if frame.opcode in {Opcode.PING, Opcode.PONG, Opcode.CLOSE}:
            return Message(raw, f"({frame.opcode.name.lower()})", None, None)
        if frame.opcode in _DATA:
            self._opcode = frame.opcode
        self._parts.append(bytes(frame.data))
        self._message += raw
        if not frame.fin:
            return None
        data, whole = b"".join(self._parts), bytes(self._message)
        self._parts, self._message = [], bytearray()
        if self._opcode is Opcode.BINARY:
            return Message(whole, "(binary)", None, None)
        return _envelope(data, whole)


def _envelope(data: bytes, raw: bytes) -> Message:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    members = value if isinstance(value, dict) else {}
    kind, message_id, reply_to = (members.get(name) for name in ("type", "message_id", "reply_to"))
    return Message(
        raw,
        kind if isinstance(kind, str) and _NAME.fullmatch(kind) else "(text)",
        message_id if isinstance(message_id, str) else None,
        reply_to if isinstance(reply_to, str) else None,
    )


class Correspondence:
    """Which type of message a reply answers. Remembers the last 1024 messages of each direction."""

    def __init__(self) -> None:
        self._types: dict[bool, OrderedDict[str, str]] = {True: OrderedDict(), False: OrderedDict()}

    def note(self, message: Message, *, from_client: bool) -> str | None:
        """Remember a message; return the type of the message of the other side that it answers, if known."""
        sent = self._types[from_client]
        if message.message_id is not None:
            sent[message.message_id] = message.type
            if len(sent) > _IDS_KEPT:
                sent.popitem(last=False)
        return self._types[not from_client].get(message.reply_to) if message.reply_to is not None else None

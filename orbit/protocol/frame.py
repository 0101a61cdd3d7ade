"""The envelope round every WebSocket message, the same for all subprotocols.

    {"protocol_version": "1", "type", "message_id", "session_id"?, "reply_to"?, "body" | "error": {"code", "message"}}

A client's frame has a body and never `reply_to` or `error`, not even empty or null ones. A server's frame has either a
body or, when its type is "error", an error. Which types exist, and which of them carry `session_id` and `reply_to`, is
for `session` and its vocabulary. Source: seed worker-contract.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from orbit.protocol import strict_json
from orbit.protocol.errors import InvalidValue
from orbit.protocol.limits import Limits
from orbit.protocol.strict_json import Value
from orbit.protocol.values import parse_id

PROTOCOL_VERSION: Final = "1"
ACK: Final = "ack"
ERROR: Final = "error"
MESSAGE_LENGTH_MAX: Final = 1_000
"""Characters in an error's message."""

_TYPE: Final = re.compile(r"[a-z]+(?:\.[a-z]+)?")
_CODE: Final = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_REQUIRED: Final = frozenset({"protocol_version", "type", "message_id"})


class Direction(StrEnum):
    """Who sent a frame."""

    CLIENT = "client"
    SERVER = "server"


_DECLARED: Final = {
    Direction.CLIENT: _REQUIRED | {"session_id", "body"},
    Direction.SERVER: _REQUIRED | {"session_id", "reply_to", "body", "error"},
}


@dataclass(frozen=True, slots=True)
class WireError:
    """Why a request or a connection was refused. Only `code` is for programs and logs."""

    code: str
    message: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One message. Exactly one of `body` and `error` is set; a body may hold `msgspec.Raw`, spliced verbatim."""

    type: str
    message_id: str
    session_id: str | None = None
    reply_to: str | None = None
    body: dict[str, Value] | None = field(default=None, repr=False)
    error: WireError | None = None


def parse_code(value: object, path: str) -> str:
    """Return a public error code: 1 to 64 capitals, digits and underscores.

    It need not be one of `ErrorCode`: a newer server may know more of them.
    """
    if not isinstance(value, str) or _CODE.fullmatch(value) is None:
        raise InvalidValue(path, "must be an error code such as NOT_FOUND")
    return value


def encode(frame: Frame, *, limits: Limits) -> bytes:
    """Write a frame. Raise InvalidValue when it is larger than a frame may be."""
    members: dict[str, Value] = {
        "protocol_version": PROTOCOL_VERSION,
        "type": frame.type,
        "message_id": frame.message_id,
    }
    if frame.session_id is not None:
        members["session_id"] = frame.session_id
    if frame.reply_to is not None:
        members["reply_to"] = frame.reply_to
    if frame.body is not None:
        members["body"] = frame.body
    if frame.error is not None:
        members["error"] = {"code": frame.error.code, "message": frame.error.message}
    data = strict_json.canonical(members)
    if len(data) > limits.frame_bytes:
        raise InvalidValue("frame", f"is larger than {limits.frame_bytes} bytes")
    return data


def decode(data: bytes, *, direction: Direction, lenient: bool, limits: Limits) -> Frame:
    """Read a frame sent by `direction`; its body stays uninterpreted.

    `lenient` ignores members that are not declared. Raise InvalidJSON or InvalidValue.
    """
    members = strict_json.parse(data, max_bytes=limits.frame_bytes, max_depth=limits.json_depth)
    if not isinstance(members, dict):
        raise InvalidValue("frame", "must be an object")
    for missing in sorted(_REQUIRED - members.keys()):
        raise InvalidValue(missing, "is required")
    if members["protocol_version"] != PROTOCOL_VERSION:
        raise InvalidValue("protocol_version", f'must be "{PROTOCOL_VERSION}"')
    if not lenient and members.keys() - _DECLARED[direction]:
        raise InvalidValue("frame", "has a member that is not declared for its direction")
    name = members["type"]
    if not isinstance(name, str) or _TYPE.fullmatch(name) is None:
        raise InvalidValue("type", "must be a message type such as event.deliver")
    failed = direction is Direction.SERVER and name == ERROR
    if failed != ("error" in members and direction is Direction.SERVER):
        raise InvalidValue("error", "goes with the type error and only with it")
    if failed == ("body" in members):
        raise InvalidValue("body", "goes with every type but error")
    return Frame(
        type=name,
        message_id=parse_id(members["message_id"], "message_id"),
        session_id=_optional_id(members, "session_id"),
        reply_to=_optional_id(members, "reply_to") if direction is Direction.SERVER else None,
        body=None if failed else _object(members["body"], "body"),
        error=_error(members["error"], lenient=lenient) if failed else None,
    )


def _optional_id(members: dict[str, Value], name: str) -> str | None:
    return parse_id(members[name], name) if name in members else None


def _object(value: Value, path: str) -> dict[str, Value]:
    if not isinstance(value, dict):
        raise InvalidValue(path, "must be an object")
    return value


def _error(value: Value, *, lenient: bool) -> WireError:
    members = _object(value, "error")
    for name in ("code", "message"):
        if name not in members:
            raise InvalidValue(f"error.{name}", "is required")
    if not lenient and len(members) > 2:
        raise InvalidValue("error", "has a member that is not declared")
    message = members["message"]
    if not isinstance(message, str) or not 1 <= len(message) <= MESSAGE_LENGTH_MAX:
        raise InvalidValue("error.message", f"must be text of 1 to {MESSAGE_LENGTH_MAX} characters")
    return WireError(parse_code(members["code"], "error.code"), message)

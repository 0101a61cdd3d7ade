"""Read a request's body: bounded, strict JSON, then the struct that the operation wants."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from orbit.protocol import strict_json
from orbit.protocol.errors import ApiError, ErrorCode, InvalidValue
from orbit.server.offload import offload

if TYPE_CHECKING:
    from starlette.requests import Request

    from orbit.protocol.limits import Limits

S = TypeVar("S", bound=msgspec.Struct)

_AT: Final = re.compile(r" - at `\$(?P<path>[^`]*)`$")
_MISSING: Final = re.compile(r"Object missing required field `(?P<name>\w+)`")
# The rest of msgspec's messages say types and our own bounds; these two would repeat what was received.
_UNKNOWN: Final = "Object contains unknown field"
_NO_SUCH_VALUE: Final = "Invalid enum value"


async def read(request: Request, limits: Limits) -> bytes:
    """Read the whole body, in `Limits.read_idle_s` at most.

    Raises ApiError: PAYLOAD_TOO_LARGE as soon as the announced or the real size shows it, INVALID_ARGUMENT when the
    body does not arrive. Safe to cancel.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > limits.request_body_bytes:
        raise _too_large(limits)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.read_idle_s):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limits.request_body_bytes:
                    raise _too_large(limits)
                chunks.append(chunk)
    except TimeoutError:
        raise ApiError(ErrorCode.INVALID_ARGUMENT, "the body did not arrive in time") from None
    return b"".join(chunks)


def check_type(request: Request) -> None:
    """Raise ApiError UNSUPPORTED_MEDIA_TYPE unless the body is announced as plain UTF-8 JSON."""
    media_type, *parameters = (part.strip().lower() for part in request.headers.get("content-type", "").split(";"))
    as_utf8 = all(parameter in {"charset=utf-8", 'charset="utf-8"', ""} for parameter in parameters)
    plain = request.headers.get("content-encoding", "identity").lower() == "identity"
    if media_type != "application/json" or not as_utf8 or not plain:
        raise ApiError(ErrorCode.UNSUPPORTED_MEDIA_TYPE, "the body must be application/json in UTF-8, not compressed")


async def parse(data: bytes, struct: type[S], limits: Limits) -> tuple[S, strict_json.Value]:
    """Read the body as strict JSON and as the struct. Raises InvalidJSON, InvalidValue. Safe to cancel."""
    return await offload(len(data), _parse, data, struct, limits)


def _parse(data: bytes, struct: type[S], limits: Limits) -> tuple[S, strict_json.Value]:
    document = strict_json.parse(data, max_bytes=limits.request_body_bytes, max_depth=limits.json_depth)
    problem: InvalidValue
    try:
        return msgspec.json.decode(data, type=struct), document
    except msgspec.ValidationError as error:
        problem = _problem(str(error))
    raise problem


def _problem(message: str) -> InvalidValue:
    """Put msgspec's message in our words; nothing of what was received is repeated."""
    at = _AT.search(message)
    path = at["path"].lstrip(".") if at else ""
    message = message[: at.start()] if at else message
    missing = _MISSING.match(message)
    if missing:
        return InvalidValue(f"{path}.{missing['name']}".lstrip("."), "is required")
    if message.startswith(_UNKNOWN):
        return InvalidValue(path or "body", "has a member that is not known here")
    if message.startswith(_NO_SUCH_VALUE):
        return InvalidValue(path or "body", "is none of the values there are")
    return InvalidValue(path or "body", message[:1].lower() + message[1:])


def _too_large(limits: Limits) -> ApiError:
    return ApiError(ErrorCode.PAYLOAD_TOO_LARGE, f"the body must not exceed {limits.request_body_bytes} bytes")

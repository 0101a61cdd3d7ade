"""Errors of the wire: one vocabulary of codes and one small tree of exceptions.

    ProtocolError            what a peer sent cannot be accepted
    ├── InvalidJSON          the bytes are not strict JSON (offset and reason, never the payload)
    └── InvalidValue         the JSON is fine, a value in it is not (path and reason, never the value)
    ApiError                 a request was understood and refused; carries the public code

Messages never quote what was received: a payload, a secret or a token must not reach a log through an exception.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import Final


class ErrorCode(StrEnum):
    """Every code that HTTP bodies, error frames and verdicts may carry; stable, clients branch on it."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    NOT_FOUND = "NOT_FOUND"
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED"
    IDEMPOTENCY_CONFLICT = "IDEMPOTENCY_CONFLICT"
    STATE_CONFLICT = "STATE_CONFLICT"
    STALE_EPOCH = "STALE_EPOCH"
    INVALID_PROOF = "INVALID_PROOF"
    SESSION_FENCED = "SESSION_FENCED"
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"
    UNSUPPORTED_MEDIA_TYPE = "UNSUPPORTED_MEDIA_TYPE"
    UNSUPPORTED_PROTOCOL = "UNSUPPORTED_PROTOCOL"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    RATE_LIMITED = "RATE_LIMITED"
    UNAVAILABLE = "UNAVAILABLE"
    INTERNAL = "INTERNAL"


HTTP_STATUS: Final = MappingProxyType(
    {
        ErrorCode.INVALID_ARGUMENT: 400,
        ErrorCode.UNAUTHENTICATED: 401,
        ErrorCode.PERMISSION_DENIED: 403,
        ErrorCode.NOT_FOUND: 404,
        ErrorCode.METHOD_NOT_ALLOWED: 405,
        ErrorCode.IDEMPOTENCY_CONFLICT: 409,
        ErrorCode.STATE_CONFLICT: 409,
        ErrorCode.STALE_EPOCH: 409,
        ErrorCode.INVALID_PROOF: 403,
        ErrorCode.SESSION_FENCED: 409,
        ErrorCode.PAYLOAD_TOO_LARGE: 413,
        ErrorCode.UNSUPPORTED_MEDIA_TYPE: 415,
        ErrorCode.UNSUPPORTED_PROTOCOL: 426,
        ErrorCode.RESOURCE_EXHAUSTED: 429,
        ErrorCode.RATE_LIMITED: 429,
        ErrorCode.UNAVAILABLE: 503,
        ErrorCode.INTERNAL: 500,
    }
)
"""The one code-to-status table; a test checks that it is total."""


class ProtocolError(ValueError):
    """What a peer sent cannot be accepted."""


class InvalidJSON(ProtocolError):
    """The bytes are not strict JSON.

    `offset` counts bytes from the start of the document; `reason` is a fixed phrase. Neither quotes the document.
    """

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(offset, reason)
        self.offset = offset
        self.reason = reason

    def __str__(self) -> str:
        return f"invalid JSON at byte {self.offset}: {self.reason}"


class InvalidValue(ProtocolError):
    """A value is missing, of the wrong shape or out of range.

    `path` names the member in dotted form, with array positions in brackets (`body.deliveries[3].epoch`); `reason` is
    a fixed phrase. Neither quotes the value.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class ApiError(Exception):
    """A request was understood and refused.

    `message` is written for the caller: it names fields and rules, never contents, secrets or the server's insides.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

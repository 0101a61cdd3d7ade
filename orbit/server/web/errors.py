"""What a caller is told when something was refused or went wrong: one shape, one table from code to status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from orbit.mysql.errors import CommitUnconfirmed, DatabaseError
from orbit.protocol.errors import HTTP_STATUS, ApiError, ErrorCode, ProtocolError
from orbit.protocol.http_v1 import ErrorBody, to_json
from orbit.runtime.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

REQUEST_ID: Final = "X-Request-Id"

UNKNOWN_OUTCOME: Final = (
    "the outcome is unknown: the database did not confirm it; the same request with the same operation key settles it"
)
NOTHING_CHANGED: Final = "the database is not available or busy; this request changed nothing, try again"

_log = get_logger(__name__)


def json_response(content: bytes, status: int, request_id: str, headers: Mapping[str, str] | None = None) -> Response:
    """Build a response; nothing that this interface says may be cached."""
    return Response(
        content,
        status_code=status,
        media_type="application/json",
        headers={REQUEST_ID: request_id, "Cache-Control": "no-store", **(headers or {})},
    )


def error_response(error: ApiError, request_id: str, headers: Mapping[str, str] | None = None) -> Response:
    """Build the response to a refusal; also fit to deny a WebSocket before its upgrade."""
    body = ErrorBody(code=error.code.value, message=error.message, request_id=request_id)
    extra = dict(headers or {})
    if error.code is ErrorCode.UNAUTHENTICATED:
        extra["WWW-Authenticate"] = "Bearer"
    return json_response(to_json(body), HTTP_STATUS[error.code], request_id, extra)


def refusal(error: Exception, request_id: str) -> ApiError:
    """Say what an exception means to the caller. What is no refusal goes to the log: its class, never its text."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ProtocolError):
        return ApiError(ErrorCode.INVALID_ARGUMENT, str(error))
    if isinstance(error, ClientDisconnect):
        return ApiError(ErrorCode.INVALID_ARGUMENT, "the request ended early")
    if isinstance(error, CommitUnconfirmed):
        _log.error("commit unconfirmed", request_id=request_id, errno=error.errno, connection=error.connection_id)
        return ApiError(ErrorCode.UNAVAILABLE, UNKNOWN_OUTCOME)
    if isinstance(error, DatabaseError):
        _log.error(
            "database failed", request_id=request_id, error=type(error).__name__, errno=error.errno, kind=error.kind
        )
        if error.kind.passes:
            return ApiError(ErrorCode.UNAVAILABLE, NOTHING_CHANGED)
    else:
        _log.error("unhandled error", request_id=request_id, exc_info=error)
    return ApiError(ErrorCode.INTERNAL, "an internal error; the server's log has more under this request_id")

"""One entry of the route table, and the one way in which every request is answered.

Authentication, permission, operation key, query, body, handler: in this order, so that nobody without a permission
makes the server read a body.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from orbit.protocol.errors import ApiError, ErrorCode, InvalidValue
from orbit.protocol.http_v1 import to_json
from orbit.protocol.values import new_id, parse_id, parse_key
from orbit.runtime.logs import get_logger
from orbit.server.services.access import Caller, Permission, require
from orbit.server.web import body
from orbit.server.web.auth import caller_of
from orbit.server.web.errors import error_response, json_response, refusal

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from orbit.protocol.strict_json import Value
    from orbit.server.parts import Platform

_log = get_logger(__name__)

_ALWAYS: Final = frozenset(
    {ErrorCode.INVALID_ARGUMENT, ErrorCode.UNAUTHENTICATED, ErrorCode.UNAVAILABLE, ErrorCode.INTERNAL}
)
_WITH_BODY: Final = frozenset({ErrorCode.PAYLOAD_TOO_LARGE, ErrorCode.UNSUPPORTED_MEDIA_TYPE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query parameter: its JSON Schema for the document, and the check that gives its value."""

    name: str
    description: str
    schema: Mapping[str, Any]
    parse: Callable[[str], Any]
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request that has passed every check but its operation's own.

    `operation_key` is empty unless the endpoint is keyed; `request` is None without a body, and `document` is the
    body as strict JSON. `query` holds what was given.
    """

    platform: Platform
    caller: Caller
    path: Mapping[str, str]
    query: Mapping[str, Any]
    operation_key: str
    request: Any
    document: Value


@dataclass(frozen=True, slots=True)
class Answer:
    """What an operation answers. `created` makes the status 201 instead of 200."""

    content: msgspec.Struct
    created: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An operation of the interface: what the server does and what its OpenAPI document says come from here alone.

    Path parameters are identifiers. `permission` None means that any credential will do. A `request` whose members
    all have defaults may be left out of the message.
    """

    method: str
    path: str
    name: str
    summary: str
    permission: Permission | None
    handler: Callable[[Call], Awaitable[Answer]]
    response: type[msgspec.Struct]
    request: type[msgspec.Struct] | None = None
    keyed: bool = False
    creates: bool = False
    query: tuple[Query, ...] = ()
    errors: frozenset[ErrorCode] = frozenset()

    @property
    def refusals(self) -> frozenset[ErrorCode]:
        """Every code that the operation can be refused with."""
        codes = _ALWAYS | self.errors
        if self.permission is not None:
            codes |= {ErrorCode.PERMISSION_DENIED}
        if self.request is not None:
            codes |= _WITH_BODY
        if self.keyed:
            codes |= {ErrorCode.IDEMPOTENCY_CONFLICT}
        return codes

    @property
    def body_optional(self) -> bool:
        """Whether an empty message stands for an empty object."""
        return self.request is not None and not msgspec.structs.fields(self.request)


async def answer(endpoint: Endpoint, request: Request) -> Response:
    """Answer a request to an endpoint, whatever happens; one line in the log."""
    started = time.monotonic()
    request_id = new_id()
    code: str | None = None
    try:
        given = await _perform(endpoint, request)
        response = json_response(to_json(given.content), 201 if given.created else 200, request_id)
    except Exception as error:  # noqa: BLE001 - the boundary: a CommitUnconfirmed becomes an answer that says so
        refused = refusal(error, request_id)
        code = refused.code.value
        response = error_response(refused, request_id)
    _log.info(
        "request",
        request_id=request_id,
        operation=endpoint.name,
        status=response.status_code,
        code=code,
        ms=round((time.monotonic() - started) * 1000, 1),
    )
    return response


async def _perform(endpoint: Endpoint, request: Request) -> Answer:
    platform: Platform = request.app.state.platform
    caller = await caller_of(request.headers, platform)
    if endpoint.permission is not None:
        require(caller, endpoint.permission)
    path = {name: parse_id(value, name) for name, value in request.path_params.items()}
    operation_key = _operation_key(request) if endpoint.keyed else ""
    query = _query(endpoint, request)
    content: msgspec.Struct | None = None
    document: Value = None
    if endpoint.request is not None:
        data = await body.read(request, platform.limits)
        if not data and endpoint.body_optional:
            data = b"{}"
        else:
            body.check_type(request)
        content, document = await body.parse(data, endpoint.request, platform.limits)
    return await endpoint.handler(
        Call(
            platform=platform,
            caller=caller,
            path=path,
            query=query,
            operation_key=operation_key,
            request=content,
            document=document,
        )
    )


def _operation_key(request: Request) -> str:
    given = request.headers.getlist("idempotency-key")
    if len(given) != 1:
        raise ApiError(ErrorCode.INVALID_ARGUMENT, "the header Idempotency-Key is required, once")
    return parse_key(given[0], "Idempotency-Key")


def _query(endpoint: Endpoint, request: Request) -> dict[str, Any]:
    known = {one.name: one for one in endpoint.query}
    found: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name not in known or name in found:
            raise InvalidValue("query", "has a parameter that is not known here or is given twice")
        found[name] = known[name].parse(value)
    for one in endpoint.query:
        if one.required and one.name not in found:
            raise InvalidValue(one.name, "is required")
    return found

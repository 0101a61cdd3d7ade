"""The OpenAPI 3.1 document, made from the route table and the structs of `orbit.protocol.http_v1`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from orbit.protocol.errors import HTTP_STATUS
from orbit.protocol.http_v1 import ErrorBody
from orbit.protocol.values import KEY_PATTERN
from orbit.server.web.errors import REQUEST_ID

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from orbit.protocol.errors import ErrorCode
    from orbit.server.web.endpoint import Endpoint

_REFERENCE: Final = "#/components/schemas/{name}"
_ID: Final = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
_HEADERS: Final = {
    REQUEST_ID: {"description": "What the server's log knows this request by.", "schema": _ID, "required": True}
}
_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": True,
    "description": "Names the operation: the same key and content give the same answer, other content a conflict.",
    "schema": {"type": "string", "pattern": f"^{KEY_PATTERN}$"},
}


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Build the document."""
    structs: set[type[msgspec.Struct]] = {ErrorBody}
    for one in endpoints:
        structs.update(struct for struct in (one.request, one.response) if struct is not None)
    ordered = sorted(structs, key=lambda struct: struct.__name__)
    references, components = msgspec.json.schema_components(ordered, ref_template=_REFERENCE)
    schemas = dict(zip(ordered, references, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for one in endpoints:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Orbit",
            "version": "1",
            "description": "Tasks, their events, and the deliveries of these to subscribers.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}],
    }


def _operation(endpoint: Endpoint, schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    permission = "any credential" if endpoint.permission is None else f"`{endpoint.permission}`"
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "description": f"Permission: {permission}.",
        "responses": _responses(endpoint, schemas),
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _ID}
        for name in re.findall(r"\{(\w+)\}", endpoint.path)
    ]
    parameters += [
        {
            "name": one.name,
            "in": "query",
            "description": one.description,
            "schema": dict(one.schema),
            **({"required": True} if one.required else {}),
        }
        for one in endpoint.query
    ]
    if endpoint.keyed:
        parameters.append(_KEY)
    if parameters:
        operation["parameters"] = parameters
    if endpoint.request is not None:
        operation["requestBody"] = {
            "required": not endpoint.body_optional,
            "content": {"application/json": {"schema": schemas[endpoint.request]}},
        }
    return operation


def _responses(endpoint: Endpoint, schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    done = {"headers": _HEADERS, "content": {"application/json": {"schema": schemas[endpoint.response]}}}
    responses: dict[str, Any] = {"200": {"description": "Done, now or before." if endpoint.keyed else "Done.", **done}}
    if endpoint.creates:
        responses["201"] = {"description": "Done now.", **done}
    for status, codes in _by_status(endpoint.refusals):
        responses[str(status)] = {
            "description": " or ".join(codes),
            "headers": _HEADERS,
            "content": {"application/json": {"schema": schemas[ErrorBody]}},
        }
    return responses


def _by_status(codes: Iterable[ErrorCode]) -> list[tuple[int, list[str]]]:
    found: dict[int, list[str]] = {}
    for code in sorted(codes):
        found.setdefault(HTTP_STATUS[code], []).append(code.value)
    return sorted(found.items())

"""One platform node as an ASGI application: the route table, the sockets, health, and the sweeper behind them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute

from orbit.mysql.errors import DatabaseError
from orbit.protocol import events_v1, worker_v1
from orbit.protocol.errors import ApiError, ErrorCode
from orbit.protocol.schemas import events_schema, worker_schema
from orbit.protocol.values import new_id
from orbit.runtime.logs import get_logger
from orbit.server.migrate import UnknownSchema, check_schema
from orbit.server.sweep import Sweeper
from orbit.server.web.endpoint import Endpoint, answer
from orbit.server.web.errors import error_response, json_response
from orbit.server.web.openapi import document
from orbit.server.web.routes import ENDPOINTS
from orbit.server.web.socket import events_socket, workers_socket

if TYPE_CHECKING:
    from orbit.server.parts import Platform

_log = get_logger(__name__)

_BY_STATUS: Final[Mapping[int, ApiError]] = {
    404: ApiError(ErrorCode.NOT_FOUND, "there is no such path"),
    405: ApiError(ErrorCode.METHOD_NOT_ALLOWED, "the path does not take this method"),
}


def create_app(platform: Platform) -> Starlette:
    """Build the application; its lifespan runs the sweeper. `app.state` has `platform` and `sweeper`."""
    app = Starlette(
        routes=[
            *_operations(),
            WebSocketRoute(events_v1.PATH, events_socket),
            WebSocketRoute(worker_v1.PATH, workers_socket),
            Route("/v1/schemas/events.schema.json", _constant(events_schema())),
            Route("/v1/schemas/worker.schema.json", _constant(worker_schema())),
            Route("/openapi.json", _constant(json.dumps(document(ENDPOINTS)).encode())),
            Route("/livez", _constant(b'{"status":"ok"}')),
            Route("/readyz", ready),
        ],
        exception_handlers={HTTPException: _refused_by_router},
        lifespan=_lifespan,
    )
    # A redirect would send the token to wherever the slash leads.
    app.router.redirect_slashes = False
    app.state.platform = platform
    app.state.sweeper = Sweeper(platform)
    return app


async def ready(request: Request) -> Response:
    """Tell whether this node does all of its work: not draining, sweeping, its database there and of its schema."""
    platform: Platform = request.app.state.platform
    problem: str | None = None
    if platform.draining.is_set():
        problem = "draining"
    elif request.app.state.sweeping.done():
        problem = "the sweeper stopped"
    else:
        try:
            await check_schema(platform.pool)
        except UnknownSchema:
            problem = "the database has another schema"
        except DatabaseError:
            problem = "the database does not answer"
    content = {"status": "ready"} if problem is None else {"status": "not ready", "reason": problem}
    return json_response(msgspec.json.encode(content), 200 if problem is None else 503, new_id())


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    sweeping = asyncio.create_task(app.state.sweeper.run(), name="sweeper")
    sweeping.add_done_callback(_note_end)
    app.state.sweeping = sweeping
    try:
        yield
    finally:
        sweeping.cancel()
        with suppress(asyncio.CancelledError):
            await sweeping


def _note_end(sweeping: asyncio.Task[None]) -> None:
    if not sweeping.cancelled():
        _log.error("the sweeper stopped", exc_info=sweeping.exception())


def _operations() -> list[Route]:
    """One route for each path, so that a wrong method is told all the right ones."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for one in ENDPOINTS:
        by_path.setdefault(one.path, {})[one.method] = one
    return [Route(path, _dispatch(methods), methods=list(methods)) for path, methods in by_path.items()]


def _dispatch(methods: Mapping[str, Endpoint]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        # HEAD is GET without its body (RFC 9110, 9.3.2), which the server drops.
        return await answer(methods["GET" if request.method == "HEAD" else request.method], request)

    return endpoint


def _constant(content: bytes) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(_: Request) -> Response:
        return json_response(content, 200, new_id())

    return endpoint


async def _refused_by_router(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    known = _BY_STATUS.get(error.status_code, ApiError(ErrorCode.INVALID_ARGUMENT, "the request is not understood"))
    return error_response(known, new_id(), error.headers)

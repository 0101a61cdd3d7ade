"""`orbit.sdk.testing.peer` over a real socket: the other end of an SDK's WebSocket in the test's own process.

A subclass says what requests do. Tests tell it what to do wrong and read what it saw; nothing in it depends on a clock.
"""

from __future__ import annotations

import contextlib
import http
import json
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, Self

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from orbit.protocol.errors import HTTP_STATUS, ErrorCode
from orbit.protocol.limits import Limits
from orbit.protocol.vocabulary import Vocabulary
from orbit.sdk.client import OrbitClient
from orbit.sdk.testing.peer import Cut, Drop, Hold, Ignore, Misdeed, Peer, PeerConnection, Refuse, Say, Seen

__all__ = [
    "Cut",
    "Drop",
    "FakeConnection",
    "FakePeer",
    "Hold",
    "Ignore",
    "Misdeed",
    "Refuse",
    "Say",
    "Seen",
    "error_answer",
    "json_answer",
]

# The server's end would log the client's token and proofs at DEBUG.
_LOG = logging.getLogger("fake-orbit")
_LOG.setLevel(logging.INFO)


class FakePeer(Peer):
    """One queue under one token, for one subprotocol; `async with` listens on a loopback port."""

    def __init__(self, vocabulary: Vocabulary, limits: Limits | None) -> None:
        super().__init__(vocabulary, limits)
        self.dials = 0
        self.subprotocol: Subprotocol | None = Subprotocol(vocabulary.subprotocol)
        self.refuse_upgrades: deque[tuple[int, ErrorCode | None]] = deque()
        self.close_on_accept: int | None = None
        self.rewrite: Callable[[bytes], bytes] = lambda data: data
        self._server: Server | None = None
        self._port = 0

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shut()

    async def listen(self) -> None:
        """Listen, after `shut()` on the same port again."""
        self._server = await serve(
            self._serve,
            "127.0.0.1",
            self._port,
            process_request=self._http,
            select_subprotocol=self._select,
            compression=None,
            max_size=self.limits.frame_bytes,
            ping_interval=None,
            close_timeout=0.5,
            logger=_LOG,
        )
        self._port = next(iter(self._server.sockets)).getsockname()[1]

    async def shut(self) -> None:
        """Close every connection with 1001 and stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    def client(self, url: str | None = None) -> OrbitClient:
        return OrbitClient(url or self.url, self.credentials, limits=self.limits)

    def connect(self, socket: ServerConnection, number: int) -> FakeConnection:
        """Give the object that serves one client's connection."""
        raise NotImplementedError

    def answer_http(self, request: Request) -> Response:
        """Answer a request that is no upgrade."""
        return error_answer(404, ErrorCode.NOT_FOUND)

    def _select(self, _connection: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
        return self.subprotocol if self.subprotocol in offered else None

    def _http(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.headers.get("Authorization") != f"Bearer {self.token.reveal()}":
            return error_answer(401, ErrorCode.UNAUTHENTICATED)
        if request.path != self.vocabulary.path:
            return self.answer_http(request)
        self.dials += 1
        self.changes.notify()
        return error_answer(*self.refuse_upgrades.popleft()) if self.refuse_upgrades else None

    async def _serve(self, socket: ServerConnection) -> None:
        if self.close_on_accept is not None:
            await socket.close(self.close_on_accept)
            return
        connection = self.connect(socket, len(self.connections) + 1)
        self.connections.append(connection)
        with contextlib.suppress(ConnectionClosed):
            await connection.serve(_texts(socket))


class FakeConnection(PeerConnection):
    """One client's connection over a socket; a subclass carries requests out and dispatches pushes."""

    def __init__(self, peer: FakePeer, socket: ServerConnection, number: int) -> None:
        super().__init__(peer, _SocketWire(socket), number)
        self.socket = socket


async def _texts(socket: ServerConnection) -> AsyncIterator[str]:
    async for message in socket:
        assert isinstance(message, str)
        yield message


class _SocketWire:
    def __init__(self, socket: ServerConnection) -> None:
        self._socket = socket

    async def send_text(self, data: bytes | str) -> None:
        await self._socket.send(data, text=True)

    def cut(self) -> None:
        self._socket.transport.abort()


def json_answer(status: int, body: dict[str, Any]) -> Response:
    content = json.dumps(body).encode()
    headers = Headers({"Content-Type": "application/json", "Content-Length": str(len(content)), "Connection": "close"})
    return Response(status, http.HTTPStatus(status).phrase, headers, content)


def error_answer(status: int, code: ErrorCode | None) -> Response:
    if code is None:
        return Response(status, http.HTTPStatus(status).phrase, Headers({"Content-Length": "0", "Connection": "close"}))
    assert HTTP_STATUS[code] == status
    return json_answer(status, {"code": str(code), "message": "as the test wants it", "request_id": "r-1"})

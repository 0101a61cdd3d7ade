"""The other end of an SDK's WebSocket in the test's own process: `ServerSession` over a real socket.

A subclass says what requests do. Tests tell it what to do wrong and read what it saw; nothing in it depends on a clock.
"""

from __future__ import annotations

import asyncio
import http
import json
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from orbit.protocol.errors import HTTP_STATUS, ErrorCode
from orbit.protocol.limits import Limits
from orbit.protocol.session import Hello, Invalid, ServerSession
from orbit.protocol.values import Secret, new_id
from orbit.protocol.vocabulary import Vocabulary
from orbit.sdk.changes import Changes
from orbit.sdk.client import OrbitClient
from orbit.sdk.credentials import Credentials

WAIT_S = 20.0
# The server's end would log the client's token and proofs at DEBUG.
_LOG = logging.getLogger("fake-orbit")
_LOG.setLevel(logging.INFO)


@dataclass(frozen=True)
class Seen:
    """A frame the client sent: its type and id, its body's dataclass, and the number of its connection, from 1."""

    type: str
    message_id: str
    body: Any
    connection: int


@dataclass(frozen=True)
class Drop:
    """Carry the request out and send no answer."""


@dataclass(frozen=True)
class Ignore:
    """Neither carry the request out nor answer it."""


@dataclass(frozen=True)
class Cut:
    """Carry the request out, send no answer and cut the TCP connection."""


@dataclass(frozen=True)
class Refuse:
    """Do nothing and answer with an error."""

    code: ErrorCode


@dataclass(frozen=True)
class Hold:
    """Carry the request out and answer when `until` is set."""

    until: asyncio.Event


@dataclass(frozen=True)
class Say:
    """Send this text in place of the answer."""

    text: str | bytes


Misdeed = Ignore | Drop | Cut | Refuse | Hold | Say


class FakePeer:
    """One queue under one token, for one subprotocol; `async with` listens on a loopback port."""

    def __init__(self, vocabulary: Vocabulary, limits: Limits | None) -> None:
        self.vocabulary = vocabulary
        self.limits = limits or Limits()
        self.queue_id = new_id()
        self.token = Secret("tok_" + new_id())
        self.seen: list[Seen] = []
        self.dials = 0
        self.subprotocol: Subprotocol | None = Subprotocol(vocabulary.subprotocol)
        self.refuse_upgrades: deque[tuple[int, ErrorCode | None]] = deque()
        self.misdeeds: dict[str, deque[Misdeed]] = {}
        self.close_on_accept: int | None = None
        self.rewrite: Callable[[bytes], bytes] = lambda data: data
        self.changes = Changes()
        self.connections: list[Any] = []
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

    @property
    def credentials(self) -> Credentials:
        return Credentials(queue_id=self.queue_id, token=self.token)

    def client(self, url: str | None = None) -> OrbitClient:
        return OrbitClient(url or self.url, self.credentials, limits=self.limits)

    async def until(self, condition: Callable[[], bool], what: str = "") -> None:
        """Wait for a condition on what the fake saw."""
        deadline = asyncio.get_running_loop().time() + WAIT_S
        assert await self.changes.until(condition, deadline), what or "the condition did not come true"

    def misbehave(self, request: str, misdeed: Misdeed) -> None:
        """Treat the next request of that type so; several are used up one by one."""
        self.misdeeds.setdefault(request, deque()).append(misdeed)

    def saw(self, kind: str) -> list[Any]:
        """The bodies of the client's frames of a type, in order."""
        return [frame.body for frame in self.seen if frame.type == kind]

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
        try:
            await connection.serve()
        except ConnectionClosed:
            pass
        finally:
            connection.open = False
            self.changes.notify()


class FakeConnection:
    """One client's connection; a subclass carries requests out and dispatches pushes."""

    def __init__(self, peer: FakePeer, socket: ServerConnection, number: int) -> None:
        self.peer = peer
        self.socket = socket
        self.number = number
        self.session = ServerSession(peer.vocabulary, peer.limits)
        self.open = True
        self._out: asyncio.Queue[bytes | str] = asyncio.Queue()

    def carry_out(self, kind: str, message_id: str, body: Any) -> bytes:
        """Do what is asked and return the answer's frame."""
        raise NotImplementedError

    def dispatch(self) -> None:
        """Push what can be pushed."""
        raise NotImplementedError

    def send(self, data: bytes | str) -> None:
        """Send a text message as it is."""
        self._out.put_nowait(data)

    async def serve(self) -> None:
        writer = asyncio.create_task(self._write())
        try:
            async for message in self.socket:
                assert isinstance(message, str)
                event = self.session.receive(message.encode())
                assert not isinstance(event, Invalid), event
                kind = self.peer.vocabulary.hello if isinstance(event, Hello) else event.type
                self.peer.seen.append(Seen(kind, event.message_id, event.body, self.number))
                self.peer.changes.notify()
                await self._treat(kind, event.message_id, event.body)
                self.dispatch()
                self.peer.changes.notify()
        finally:
            self.session.lost()
            writer.cancel()
            await asyncio.wait([writer])

    async def _write(self) -> None:
        while True:
            await self.socket.send(await self._out.get(), text=True)

    async def _treat(self, kind: str, message_id: str, body: Any) -> None:
        planned = self.peer.misdeeds.get(kind)
        misdeed = planned.popleft() if planned else None
        if isinstance(misdeed, Refuse):
            self.send(self.session.refuse(message_id, misdeed.code, "as the test wants it"))
            return
        if isinstance(misdeed, Ignore):
            return
        answer = self.carry_out(kind, message_id, body)
        if isinstance(misdeed, Cut):
            self.socket.transport.abort()
        elif isinstance(misdeed, Say):
            self.send(misdeed.text)
        elif not isinstance(misdeed, Drop):
            if isinstance(misdeed, Hold):
                await misdeed.until.wait()
            self.send(answer)


def json_answer(status: int, body: dict[str, Any]) -> Response:
    content = json.dumps(body).encode()
    headers = Headers({"Content-Type": "application/json", "Content-Length": str(len(content)), "Connection": "close"})
    return Response(status, http.HTTPStatus(status).phrase, headers, content)


def error_answer(status: int, code: ErrorCode | None) -> Response:
    if code is None:
        return Response(status, http.HTTPStatus(status).phrase, Headers({"Content-Length": "0", "Connection": "close"}))
    assert HTTP_STATUS[code] == status
    return json_answer(status, {"code": str(code), "message": "as the test wants it", "request_id": "r-1"})

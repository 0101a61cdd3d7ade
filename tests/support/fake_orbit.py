"""An Orbit of one subscription in the test's own process: `ServerSession` over a real socket, deliveries in memory.

It answers GET of its subscription and the WebSocket of `pulse.events.v1`. Tests tell it what to do wrong, read what it
saw, and let leases end by hand; nothing in it depends on a clock.
"""

from __future__ import annotations

import asyncio
import http
import json
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self

import msgspec
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from orbit.protocol import events_v1
from orbit.protocol.errors import HTTP_STATUS, ErrorCode
from orbit.protocol.events_v1 import Disposition, Verdict, Verdicts
from orbit.protocol.limits import Limits
from orbit.protocol.session import Hello, Invalid, ServerSession
from orbit.protocol.values import Secret, new_id
from orbit.sdk.changes import Changes
from orbit.sdk.client import OrbitClient
from orbit.sdk.credentials import Credentials

WAIT_S = 20.0
LEASE_S = 30.0
# The server's end would log the client's token and proofs at DEBUG.
_LOG = logging.getLogger("fake-orbit")
_LOG.setLevel(logging.INFO)


@dataclass
class Delivery:
    """One delivery as the fake platform has it."""

    delivery_id: str
    event: msgspec.Raw
    state: str = "PENDING"
    attempts: int = 0
    epoch: int = 0
    secret: Secret | None = field(default=None, repr=False)
    receipts: int = 0
    """How often an ACK changed it: once at most, or the platform is broken."""
    lease_s: float = LEASE_S


@dataclass(frozen=True)
class Seen:
    """A frame the client sent: its type, its body's dataclass, and the number of its connection, from 1."""

    type: str
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


class FakeOrbit:
    """One subscription on one queue under one token; `async with` listens on a loopback port."""

    def __init__(self, *, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.queue_id = new_id()
        self.subscription_id = new_id()
        self.token = Secret("tok_" + new_id())
        self.bound_to = self.queue_id
        self.welcome_queue: str | None = None
        self.deliveries: dict[str, Delivery] = {}
        self.seen: list[Seen] = []
        self.dials = 0
        self.lookups = 0
        self.subprotocol: Subprotocol | None = Subprotocol(events_v1.SUBPROTOCOL)
        self.refuse_lookups: deque[tuple[int, ErrorCode | None]] = deque()
        self.refuse_upgrades: deque[tuple[int, ErrorCode | None]] = deque()
        self.misdeeds: dict[str, deque[Misdeed]] = {}
        self.close_on_accept: int | None = None
        self.rewrite: Callable[[bytes], bytes] = lambda data: data
        self.changes = Changes()
        self.connections: list[_Connection] = []
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

    @property
    def connection(self) -> _Connection:
        """The newest connection."""
        return self.connections[-1]

    async def until(self, condition: Callable[[], bool], what: str = "") -> None:
        """Wait for a condition on what the fake saw."""
        deadline = asyncio.get_running_loop().time() + WAIT_S
        assert await self.changes.until(condition, deadline), what or "the condition did not come true"

    def misbehave(self, request: str, misdeed: Misdeed) -> None:
        """Treat the next request of that type so; several are used up one by one."""
        self.misdeeds.setdefault(request, deque()).append(misdeed)

    def emit(self, event: dict[str, Any] | None = None, *, lease_s: float = LEASE_S) -> Delivery:
        """Add a delivery; it is pushed as soon as a connection has room."""
        content = self.event() if event is None else event
        delivery = Delivery(new_id(), msgspec.Raw(json.dumps(content).encode()), lease_s=lease_s)
        self.deliveries[delivery.delivery_id] = delivery
        self._dispatch()
        return delivery

    def event(self, **members: Any) -> dict[str, Any]:
        """A valid event of this queue."""
        return {
            "event_id": new_id(),
            "event_type": "task.cancelled",
            "queue_id": self.queue_id,
            "task_id": new_id(),
            "task_version": "2",
            "state": "CANCELLED",
            "occurred_at": "2026-11-30T08:00:00Z",
            **members,
        }

    def lapse(self, delivery: Delivery) -> None:
        """End the delivery's lease; it is delivered again under the next epoch."""
        assert delivery.state == "LEASED", delivery
        delivery.state = "PENDING"
        for connection in self.connections:
            connection.outstanding.discard(delivery.delivery_id)
        self._dispatch()

    def saw(self, kind: str) -> list[Any]:
        """The bodies of the client's frames of a type, in order."""
        return [frame.body for frame in self.seen if frame.type == kind]

    def _select(self, _connection: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
        return self.subprotocol if self.subprotocol in offered else None

    def _http(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.headers.get("Authorization") != f"Bearer {self.token.reveal()}":
            return _error(401, ErrorCode.UNAUTHENTICATED)
        if request.path == events_v1.PATH:
            self.dials += 1
            self.changes.notify()
            return _error(*self.refuse_upgrades.popleft()) if self.refuse_upgrades else None
        self.lookups += 1
        self.changes.notify()
        if self.refuse_lookups:
            return _error(*self.refuse_lookups.popleft())
        if request.path != f"/v1/subscriptions/{self.subscription_id}":
            return _error(404, ErrorCode.NOT_FOUND)
        return _json(
            200,
            {
                "subscription_id": self.subscription_id,
                "queue_id": self.bound_to,
                "event_types": ["task.cancelled"],
                "enabled": True,
                "window": 64,
                "attempt_budget": 10,
                "created_at": "2026-11-30T08:00:00Z",
                "updated_at": "2026-11-30T08:00:00Z",
            },
        )

    async def _serve(self, socket: ServerConnection) -> None:
        if self.close_on_accept is not None:
            await socket.close(self.close_on_accept)
            return
        connection = _Connection(self, socket, len(self.connections) + 1)
        self.connections.append(connection)
        try:
            await connection.serve()
        except ConnectionClosed:
            pass
        finally:
            connection.open = False
            self.changes.notify()

    def _dispatch(self) -> None:
        for connection in self.connections:
            connection.dispatch()
        self.changes.notify()


class _Connection:
    """One client's connection: its session, its capacity and what it was sent."""

    def __init__(self, orbit: FakeOrbit, socket: ServerConnection, number: int) -> None:
        self.orbit = orbit
        self.socket = socket
        self.number = number
        self.session = ServerSession(events_v1.VOCABULARY, orbit.limits)
        self.capacity = 0
        self.outstanding: set[str] = set()
        self.open = True
        self._out: asyncio.Queue[bytes | str | None] = asyncio.Queue()

    def push(self, delivery: Delivery) -> None:
        """Lease a delivery to this connection, whatever its capacity."""
        delivery.state = "LEASED"
        delivery.epoch += 1
        delivery.attempts += 1
        delivery.secret = Secret.new()
        self.outstanding.add(delivery.delivery_id)
        now = datetime.now(UTC)
        body = events_v1.Delivery(
            proof=events_v1.Proof(delivery_id=delivery.delivery_id, epoch=delivery.epoch, lease_secret=delivery.secret),
            attempt=delivery.attempts,
            attempt_budget=10,
            lease_until=now + timedelta(seconds=delivery.lease_s),
            server_time=now,
            event=delivery.event,
        )
        self.send(self.orbit.rewrite(self.session.push("event.deliver", body, new_id())))

    def send(self, data: bytes | str) -> None:
        """Send a text message as it is."""
        self._out.put_nowait(data)

    def dispatch(self) -> None:
        if not self.open or self.session.phase != "OPEN":
            return
        for delivery in self.orbit.deliveries.values():
            if delivery.state == "PENDING" and len(self.outstanding) < self.capacity:
                self.push(delivery)

    async def serve(self) -> None:
        writer = asyncio.create_task(self._write())
        try:
            async for message in self.socket:
                assert isinstance(message, str)
                event = self.session.receive(message.encode())
                assert not isinstance(event, Invalid), event
                kind = "consumer.hello" if isinstance(event, Hello) else event.type
                self.orbit.seen.append(Seen(kind, event.body, self.number))
                self.orbit.changes.notify()
                await self._treat(kind, event.message_id, event.body)
                self.dispatch()
                self.orbit.changes.notify()
        finally:
            self.session.lost()
            writer.cancel()
            await asyncio.wait([writer])

    async def _write(self) -> None:
        while True:
            data = await self._out.get()
            await self.socket.send(data or b"", text=True)

    async def _treat(self, kind: str, message_id: str, body: Any) -> None:
        planned = self.orbit.misdeeds.get(kind)
        misdeed = planned.popleft() if planned else None
        if isinstance(misdeed, Refuse):
            self.send(self.session.refuse(message_id, misdeed.code, "as the test wants it"))
            return
        if isinstance(misdeed, Ignore):
            return
        answer = self._carry_out(kind, message_id, body)
        if isinstance(misdeed, Cut):
            self.socket.transport.abort()
        elif isinstance(misdeed, Say):
            self.send(misdeed.text)
        elif not isinstance(misdeed, Drop):
            if isinstance(misdeed, Hold):
                await misdeed.until.wait()
            self.send(answer)

    def _carry_out(self, kind: str, message_id: str, body: Any) -> bytes:
        if kind == "consumer.hello":
            return self.session.welcome(new_id(), message_id, self._welcome(None))
        if kind == "consumer.capacity":
            self.capacity = body.capacity
            return self.session.reply(message_id, self._welcome(body.sequence))
        judge = self._acknowledge if kind == "event.ack" else self._release
        return self.session.reply(message_id, Verdicts(verdicts=tuple(judge(one) for one in body.deliveries)))

    def _welcome(self, sequence: int | None) -> events_v1.Welcome:
        return events_v1.Welcome(
            subscription_id=self.orbit.subscription_id,
            queue_id=self.orbit.welcome_queue or self.orbit.queue_id,
            server_time=datetime.now(UTC),
            sequence=sequence,
            capacity=self.capacity,
        )

    def _acknowledge(self, proof: events_v1.Proof) -> Verdict:
        delivery = self.orbit.deliveries[proof.delivery_id]
        if proof.epoch != delivery.epoch or proof.lease_secret != delivery.secret:
            return _verdict(proof, Disposition.REFUSED, code=ErrorCode.STALE_EPOCH)
        self.outstanding.discard(proof.delivery_id)
        if delivery.state != "ACKED":
            delivery.state = "ACKED"
            delivery.receipts += 1
        return _verdict(proof, Disposition.ACKED, acked_at=datetime(2026, 11, 30, 8, tzinfo=UTC))

    def _release(self, released: events_v1.Released) -> Verdict:
        delivery = self.orbit.deliveries[released.proof.delivery_id]
        if released.proof.epoch != delivery.epoch:
            return _verdict(released.proof, Disposition.REFUSED, code=ErrorCode.STALE_EPOCH)
        self.outstanding.discard(delivery.delivery_id)
        if not released.started and delivery.state == "LEASED":
            delivery.state = "PENDING"
            delivery.attempts -= 1
        return _verdict(released.proof, Disposition.RELEASED)


def _verdict(proof: events_v1.Proof, disposition: Disposition, **more: Any) -> Verdict:
    return Verdict(delivery_id=proof.delivery_id, epoch=proof.epoch, disposition=disposition, **more)


def _json(status: int, body: dict[str, Any]) -> Response:
    content = json.dumps(body).encode()
    headers = Headers({"Content-Type": "application/json", "Content-Length": str(len(content)), "Connection": "close"})
    return Response(status, http.HTTPStatus(status).phrase, headers, content)


def _error(status: int, code: ErrorCode | None) -> Response:
    if code is None:
        return Response(status, http.HTTPStatus(status).phrase, Headers({"Content-Length": "0", "Connection": "close"}))
    assert HTTP_STATUS[code] == status
    return _json(status, {"code": str(code), "message": "as the test wants it", "request_id": "r-1"})

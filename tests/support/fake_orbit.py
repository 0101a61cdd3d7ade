"""An Orbit of one subscription in the test's own process, deliveries in memory.

It answers GET of its subscription and the WebSocket of `pulse.events.v1`. Tests tell it what to do wrong, read what it
saw, and let leases end by hand; nothing in it depends on a clock.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request, Response

from orbit.protocol import events_v1
from orbit.protocol.errors import ErrorCode
from orbit.protocol.events_v1 import Disposition, Verdict, Verdicts
from orbit.protocol.limits import Limits
from orbit.protocol.values import Secret, new_id
from tests.support.fake_peer import (
    Cut,
    Drop,
    FakeConnection,
    FakePeer,
    Hold,
    Ignore,
    Misdeed,
    Refuse,
    Say,
    Seen,
    error_answer,
    json_answer,
)

__all__ = ["Cut", "Delivery", "Drop", "FakeOrbit", "Hold", "Ignore", "Misdeed", "Refuse", "Say", "Seen"]

LEASE_S = 30.0


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


class FakeOrbit(FakePeer):
    """One subscription on one queue under one token; `async with` listens on a loopback port."""

    def __init__(self, *, limits: Limits | None = None) -> None:
        super().__init__(events_v1.VOCABULARY, limits)
        self.subscription_id = new_id()
        self.bound_to = self.queue_id
        self.welcome_queue: str | None = None
        self.deliveries: dict[str, Delivery] = {}
        self.lookups = 0
        self.refuse_lookups: deque[tuple[int, ErrorCode | None]] = deque()

    @property
    def connection(self) -> _Connection:
        """The newest connection."""
        newest: _Connection = self.connections[-1]
        return newest

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

    def connect(self, socket: ServerConnection, number: int) -> _Connection:
        return _Connection(self, socket, number)

    def answer_http(self, request: Request) -> Response:
        self.lookups += 1
        self.changes.notify()
        if self.refuse_lookups:
            return error_answer(*self.refuse_lookups.popleft())
        if request.path != f"/v1/subscriptions/{self.subscription_id}":
            return error_answer(404, ErrorCode.NOT_FOUND)
        return json_answer(
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

    def _dispatch(self) -> None:
        for connection in self.connections:
            connection.dispatch()
        self.changes.notify()


class _Connection(FakeConnection):
    """One client's connection: its session, its capacity and what it was sent."""

    def __init__(self, orbit: FakeOrbit, socket: ServerConnection, number: int) -> None:
        super().__init__(orbit, socket, number)
        self.orbit = orbit
        self.capacity = 0
        self.outstanding: set[str] = set()

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

    def dispatch(self) -> None:
        if not self.open or self.session.phase != "OPEN":
            return
        for delivery in self.orbit.deliveries.values():
            if delivery.state == "PENDING" and len(self.outstanding) < self.capacity:
                self.push(delivery)

    def carry_out(self, kind: str, message_id: str, body: Any) -> bytes:
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

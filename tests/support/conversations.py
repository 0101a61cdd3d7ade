"""Both ends of a `pulse.events.v1` conversation in one process, and the bodies to fill it with."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from orbit.protocol import events_v1
from orbit.protocol.limits import Limits
from orbit.protocol.session import ClientSession, Hello, Reply, Requested, ServerSession, Welcomed
from orbit.protocol.values import Secret
from orbit.protocol.vocabulary import Body

NOW = datetime(2026, 11, 30, 8, 0, 0, 250_000, tzinfo=UTC)
SUBSCRIPTION = "5" * 32
QUEUE = "a" * 32
CONSUMER = "c" * 32
SESSION = "e" * 32
SECRET = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
EVENT = msgspec.Raw(b'{"any":"object","n":1.10}')


def ident(number: int) -> str:
    """The identifier that ends in `number`."""
    return f"{number:032x}"


def hello() -> events_v1.Hello:
    return events_v1.Hello(subscription_id=SUBSCRIPTION, consumer_id=CONSUMER)


def welcome(sequence: int | None = None, capacity: int = 0) -> events_v1.Welcome:
    return events_v1.Welcome(
        subscription_id=SUBSCRIPTION, queue_id=QUEUE, server_time=NOW, sequence=sequence, capacity=capacity
    )


def capacity(sequence: int, room: int = 20) -> events_v1.Capacity:
    return events_v1.Capacity(sequence=sequence, capacity=room)


def proof(number: int = 1, epoch: int = 1) -> events_v1.Proof:
    return events_v1.Proof(delivery_id=ident(number), epoch=epoch, lease_secret=Secret(SECRET))


def delivery(number: int = 1, event: Any = EVENT) -> events_v1.Delivery:
    return events_v1.Delivery(
        proof=proof(number),
        attempt=1,
        attempt_budget=10,
        lease_until=NOW + timedelta(seconds=30),
        server_time=NOW,
        event=event,
    )


def ack(*numbers: int) -> events_v1.Ack:
    return events_v1.Ack(deliveries=tuple(proof(number) for number in numbers))


def release(*numbers: int, started: bool = False) -> events_v1.Release:
    return events_v1.Release(
        deliveries=tuple(events_v1.Released(proof=proof(number), started=started) for number in numbers)
    )


def acked(*numbers: int) -> events_v1.Verdicts:
    return events_v1.Verdicts(
        verdicts=tuple(
            events_v1.Verdict(delivery_id=ident(number), epoch=1, disposition=events_v1.Disposition.ACKED, acked_at=NOW)
            for number in numbers
        )
    )


def released(*numbers: int) -> events_v1.Verdicts:
    return events_v1.Verdicts(
        verdicts=tuple(
            events_v1.Verdict(delivery_id=ident(number), epoch=1, disposition=events_v1.Disposition.RELEASED)
            for number in numbers
        )
    )


def answer_to(request: Requested) -> Body:
    """The reply of a server that grants everything."""
    if isinstance(request.body, events_v1.Capacity):
        return welcome(request.body.sequence, request.body.capacity)
    if isinstance(request.body, events_v1.Ack):
        return acked(*(int(one.delivery_id, 16) for one in request.body.deliveries))
    assert isinstance(request.body, events_v1.Release)
    return released(*(int(one.proof.delivery_id, 16) for one in request.body.deliveries))


class Pair:
    """A client and a server session, brought to the phase a test starts from."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.client = ClientSession(events_v1.VOCABULARY, limits)
        self.server = ServerSession(events_v1.VOCABULARY, limits)

    def greeted(self) -> Pair:
        """Exchange hello and welcome."""
        greeting = self.server.receive(self.client.hello(hello(), ident(0xA0)))
        assert isinstance(greeting, Hello)
        answer = self.client.receive(self.server.welcome(SESSION, greeting.message_id, welcome()))
        assert answer == Welcomed(welcome())
        return self

    def opened(self) -> Pair:
        """Exchange hello, welcome and the first capacity."""
        self.greeted()
        request = self.server.receive(self.client.request("consumer.capacity", capacity(1), ident(0xA1)))
        assert isinstance(request, Requested)
        answer = self.client.receive(self.server.reply(request.message_id, answer_to(request)))
        assert answer == Reply(ident(0xA1), "consumer.capacity", welcome(1, 20))
        return self


def changed(data: bytes, **members: Any) -> bytes:
    """The frame with members set, or removed where the value is `...`; for frames without splices only."""
    frame = json.loads(data)
    frame.update(members)
    return json.dumps({name: value for name, value in frame.items() if value is not ...}).encode()

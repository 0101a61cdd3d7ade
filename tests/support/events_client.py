"""A bare consumer of `pulse.events.v1`."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from orbit.protocol import events_v1
from orbit.protocol.events_v1 import Ack, Capacity, Delivery, Hello, Proof, Release, Released, Verdict, Welcome
from orbit.protocol.values import new_id
from tests.support.wire_client import DEADLINE_S, Closed, Refusal, WireClient, upgraded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from websockets.asyncio.client import ClientConnection

    from orbit.protocol.session import Push

__all__ = ["DEADLINE_S", "Closed", "EventsClient", "Refusal", "event_of", "socket"]


def event_of(one: Delivery) -> dict[str, Any]:
    """The event as it came, parsed."""
    assert isinstance(one.event, dict)
    return one.event


def socket(
    base_url: str, token: str, subprotocol: str = events_v1.SUBPROTOCOL
) -> AbstractAsyncContextManager[ClientConnection]:
    """An upgraded connection to /v1/events that nothing was said on yet."""
    return upgraded(base_url, events_v1.PATH, token, subprotocol)


class EventsClient(WireClient):
    """One consumer on one connection. Deliveries wait in `deliveries`."""

    vocabulary = events_v1.VOCABULARY

    def __init__(self, connection: ClientConnection) -> None:
        super().__init__(connection)
        self.deliveries: asyncio.Queue[Delivery] = asyncio.Queue()

    @classmethod
    @asynccontextmanager
    async def open(cls, base_url: str, token: str, subscription_id: str) -> AsyncIterator[EventsClient]:
        """Connect and greet; raises Refusal. No capacity is announced yet."""
        async with socket(base_url, token) as connection:
            client = cls(connection)
            async with client.reading():
                await client.greet(subscription_id)
                yield client

    def pushed(self, push: Push) -> None:
        """Keep a delivery."""
        self.deliveries.put_nowait(push.body)

    async def greet(self, subscription_id: str) -> Welcome:
        """Say hello and wait for the welcome."""
        welcome: Welcome = await self.hello(Hello(subscription_id=subscription_id, consumer_id=new_id()))
        return welcome

    async def capacity(self, count: int) -> Welcome:
        """Announce a capacity under the next sequence and wait until it is confirmed."""
        self._sequence += 1
        welcome: Welcome = await self.request("consumer.capacity", Capacity(sequence=self._sequence, capacity=count))
        return welcome

    async def ack(self, *proofs: Proof) -> tuple[Verdict, ...]:
        """Acknowledge and wait for the verdicts."""
        return tuple((await self.request("event.ack", Ack(deliveries=proofs))).verdicts)

    async def release(self, *proofs: Proof, started: bool) -> tuple[Verdict, ...]:
        """Release and wait for the verdicts."""
        items = tuple(Released(proof=one, started=started) for one in proofs)
        return tuple((await self.request("event.release", Release(deliveries=items))).verdicts)

    async def delivery(self) -> Delivery:
        """The next delivery; raises Closed, TimeoutError."""
        delivery: Delivery = await self.taken(self.deliveries)
        return delivery

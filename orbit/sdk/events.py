"""`pulse.events.v1` over one connection, as typed calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Never

from orbit.protocol.events_v1 import (
    VOCABULARY,
    Ack,
    Capacity,
    Delivery,
    Hello,
    Proof,
    Release,
    Released,
    Verdict,
    Verdicts,
    Welcome,
)
from orbit.protocol.grant import local_deadline
from orbit.protocol.limits import Limits
from orbit.protocol.session import Push
from orbit.sdk.channel import Channel
from orbit.sdk.conversation import Conversation


class EventConnection:
    """One consumer's connection. `read()` must run for as long as it is used; errors are the conversation's."""

    def __init__(self, channel: Channel, limits: Limits, on_delivery: Callable[[Delivery, float], None]) -> None:
        """`on_delivery(delivery, deadline)` is called by the reader for every lease; it must not raise."""
        self._limits = limits
        self._on_delivery = on_delivery
        self._conversation = Conversation(channel, VOCABULARY, limits, self._take)
        self._sequence = 0
        # Local and database time of one moment, the local one early: see _deadline.
        self._anchor: tuple[float, datetime] | None = None

    async def read(self) -> Never:
        """Take messages until the connection is over; raises the reason."""
        await self._conversation.read()

    async def close(self) -> None:
        """Close the connection; bounded, safe to repeat."""
        await self._conversation.close()

    async def hello(self, hello: Hello) -> Welcome:
        """Open the session."""
        called_at = time.monotonic()
        welcome: Welcome = await self._conversation.hello(hello)
        self._anchor = called_at, welcome.server_time
        return welcome

    async def announce(self, capacity: int) -> None:
        """Say how many deliveries this end takes, in all; the first answer opens the session. Not concurrently."""
        self._sequence += 1
        called_at = time.monotonic()
        body = Capacity(sequence=self._sequence, capacity=capacity)
        welcome: Welcome = await self._conversation.request("consumer.capacity", body)
        self._anchor = called_at, welcome.server_time

    async def acknowledge(self, proofs: Sequence[Proof]) -> Sequence[Verdict]:
        """Report 1 to 64 deliveries as done; one verdict for each, in order. Safe to repeat with the same proofs."""
        verdicts: Verdicts = await self._conversation.request("event.ack", Ack(deliveries=tuple(proofs)))
        return verdicts.verdicts

    async def release(self, releases: Sequence[Released]) -> Sequence[Verdict]:
        """Give up 1 to 64 deliveries; one verdict for each, in order. Safe to repeat with the same proofs."""
        verdicts: Verdicts = await self._conversation.request("event.release", Release(deliveries=tuple(releases)))
        return verdicts.verdicts

    def _take(self, push: Push) -> None:
        self._on_delivery(push.body, self._deadline(push.body))

    def _deadline(self, delivery: Delivery) -> float:
        """The local, monotonic end of a lease, early rather than late.

        Counted from the receipt, the time on the way would be lost. The last answered request bounds it: at the moment
        it was sent, the database's clock had not yet reached the time in its answer. The smaller one holds, so that a
        database clock that is set back or forth between the two grants nothing.
        """
        margin_s = self._limits.local_margin_s
        received = local_deadline(time.monotonic(), delivery.lease_until, delivery.server_time, margin_s)
        if self._anchor is None:
            return received
        called_at, server_time = self._anchor
        return min(received, local_deadline(called_at, delivery.lease_until, server_time, margin_s))

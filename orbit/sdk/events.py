"""`pulse.events.v1` over one connection, as typed calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
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

    async def read(self) -> Never:
        """Take messages until the connection is over; raises the reason."""
        await self._conversation.read()

    async def close(self) -> None:
        """Close the connection; bounded, safe to repeat."""
        await self._conversation.close()

    async def hello(self, hello: Hello) -> Welcome:
        """Open the session."""
        welcome: Welcome = await self._conversation.hello(hello)
        return welcome

    async def announce(self, capacity: int) -> None:
        """Say how many deliveries this end takes, in all; the first answer opens the session. Not concurrently."""
        self._sequence += 1
        await self._conversation.request("consumer.capacity", Capacity(sequence=self._sequence, capacity=capacity))

    async def acknowledge(self, proofs: Sequence[Proof]) -> Sequence[Verdict]:
        """Report 1 to 64 deliveries as done; one verdict for each, in order. Safe to repeat with the same proofs."""
        verdicts: Verdicts = await self._conversation.request("event.ack", Ack(deliveries=tuple(proofs)))
        return verdicts.verdicts

    async def release(self, releases: Sequence[Released]) -> Sequence[Verdict]:
        """Give up 1 to 64 deliveries; one verdict for each, in order. Safe to repeat with the same proofs."""
        verdicts: Verdicts = await self._conversation.request("event.release", Release(deliveries=tuple(releases)))
        return verdicts.verdicts

    def _take(self, push: Push) -> None:
        delivery: Delivery = push.body
        # For a push there is no request to count from: see `grant`. The welcome's time is no help, since the server
        # carries it on from the hello by its own clock, and the two clocks drift apart over a long connection.
        deadline = local_deadline(
            time.monotonic(), delivery.lease_until, delivery.server_time, self._limits.local_margin_s
        )
        self._on_delivery(delivery, deadline)

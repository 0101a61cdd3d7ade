"""What stands behind a connection of `pulse.events.v1`: one consumer of one subscription.

The consumer's capacity is how many deliveries it holds at most. What it was given over this connection and has neither
acknowledged nor released, under a lease that still runs, is outstanding; the difference is its credit. Slots are
counted for the connection: a consumer that still holds deliveries of an earlier one announces so much less.

A consumer that has said nothing for `HEARTBEATS_MISSED` heartbeats is given nothing until it speaks again: a dead link
looks like a silent one, and each lease would spend an attempt on nobody.

When the connection ends, deliveries stay leased until their leases end, and then go to whoever asks.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from msgspec import Raw

from orbit.mysql.errors import DatabaseError
from orbit.protocol.errors import ErrorCode, InvalidValue
from orbit.protocol.events_v1 import Ack, Capacity, Release, Verdicts, Welcome
from orbit.runtime.logs import get_logger
from orbit.server.services import deliveries
from orbit.server.wake import subscription_key
from orbit.server.web.spliced import check_spliced

if TYPE_CHECKING:
    from orbit.protocol.events_v1 import Delivery, Hello
    from orbit.protocol.session import Requested
    from orbit.server.parts import Platform
    from orbit.server.services.access import Caller
    from orbit.server.wake import Watch
    from orbit.server.web.socket import Push, Reply

DELIVER: Final = "event.deliver"
HEARTBEATS_MISSED: Final = 2

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Opened:
    """What the hello led to; `at` is the loop's clock."""

    subscription_id: str
    queue_id: str
    server_time: datetime
    at: float


class Consumer:
    """One connection's consumer: a `Service` of the socket loop."""

    def __init__(self, platform: Platform, caller: Caller) -> None:
        self._platform = platform
        self._caller = caller
        self._loop = asyncio.get_running_loop()
        self._capacity = 0
        self._heard_at = self._loop.time()
        # (delivery, epoch) of what is outstanding, and when its lease is over by the loop's clock at the latest.
        self._outstanding: dict[tuple[str, int], float] = {}
        # Held while a capacity is confirmed and while deliveries are claimed and pushed: what is pushed after the
        # confirmation of a capacity never exceeds it, and nothing that was claimed before is pushed after it.
        self._pushing = asyncio.Lock()
        self._watch: Watch | None = None
        self._opened: _Opened | None = None

    async def greet(self, hello: Hello) -> Welcome:
        """Check that the caller may consume the subscription. Raises ApiError NOT_FOUND, PERMISSION_DENIED."""
        found = await deliveries.open_subscription(self._platform, self._caller, hello.subscription_id)
        self._opened = _Opened(hello.subscription_id, found.queue_id, found.now, self._loop.time())
        _log.info("consumer greeted", subscription_id=hello.subscription_id, consumer_id=hello.consumer_id)
        return self._welcome()

    async def serve(self, request: Requested, reply: Reply) -> None:
        """Confirm a capacity, or settle acknowledgements and releases. Safe to cancel."""
        self._heard_at = self._loop.time()
        match request.body:
            case Capacity() as capacity:
                async with self._pushing:
                    await reply(self._welcome(capacity.sequence, capacity.capacity))
                    self._capacity = capacity.capacity
                self._look()
            case Ack() as ack:
                await self._settled(await deliveries.acknowledge(self._platform, self._subscription_id, ack), reply)
            case Release() as release:
                await self._settled(await deliveries.release(self._platform, self._subscription_id, release), reply)
            case _:
                raise TypeError("the vocabulary has a request that nobody serves")

    async def push_all(self, push: Push) -> None:
        """Claim and push while there is credit, until cancelled."""
        with self._platform.wake.watch(subscription_key(self._subscription_id)) as watch:
            self._watch = watch
            while True:
                watch.arm()
                if not await self._round(push):
                    await watch.wait(self._platform.limits.node_poll_s)

    async def _round(self, push: Push) -> bool:
        """Claim once and push; tell whether there may be more at once."""
        async with self._pushing:
            credit = self._credit()
            if credit < 1 or self._silent() or self._platform.draining.is_set():
                return False
            try:
                leased = await deliveries.claim(self._platform, self._subscription_id, credit)
            except DatabaseError as error:
                # What an unconfirmed COMMIT may have leased comes back when its lease is over.
                _log.warning("claim failed", error=type(error).__name__, errno=error.errno, kind=error.kind)
                return False
            claimed_at = self._loop.time()
            for one in leased:
                self._outstanding[one.proof.delivery_id, one.proof.epoch] = claimed_at + _lasts(one)
            for one in leased:
                await self._deliver(one, push)
            return len(leased) == min(credit, self._platform.limits.delivery_batch)

    async def _deliver(self, one: Delivery, push: Push) -> None:
        try:
            assert isinstance(one.event, Raw), "a claim gives the frozen text"
            await check_spliced(one.event, "body.event", self._platform.limits)
            await push(DELIVER, one)
        except InvalidValue as error:
            # No frame can hold it: it spends its attempts and ends EXPIRED, in sight, and its neighbours go on.
            _log.error("delivery cannot be sent", delivery_id=one.proof.delivery_id, reason=str(error))

    async def _settled(self, verdicts: Verdicts, reply: Reply) -> None:
        """Free the slots and reply. A wrong secret frees none: whoever sent it holds no such delivery."""
        for one in verdicts.verdicts:
            if one.code is not ErrorCode.INVALID_PROOF:
                self._outstanding.pop((one.delivery_id, one.epoch), None)
        await reply(verdicts)
        self._look()

    def _credit(self) -> int:
        now = self._loop.time()
        for key in [key for key, ends in self._outstanding.items() if ends <= now]:
            del self._outstanding[key]
        return self._capacity - len(self._outstanding)

    def _silent(self) -> bool:
        return self._loop.time() - self._heard_at > HEARTBEATS_MISSED * self._platform.limits.heartbeat_s

    def _look(self) -> None:
        if self._watch is not None:
            self._watch.notify()

    @property
    def _subscription_id(self) -> str:
        return self._greeted.subscription_id

    @property
    def _greeted(self) -> _Opened:
        assert self._opened is not None, "the socket loop greets first"
        return self._opened

    def _welcome(self, sequence: int | None = None, capacity: int = 0) -> Welcome:
        opened = self._greeted
        # The database's clock as of the hello, carried on by this node's: a heartbeat asks the database nothing.
        now = opened.server_time + timedelta(seconds=self._loop.time() - opened.at)
        return Welcome(
            subscription_id=opened.subscription_id,
            queue_id=opened.queue_id,
            server_time=now,
            sequence=sequence,
            capacity=capacity,
        )


def _lasts(one: Delivery) -> float:
    """How long the lease lasts, in seconds; counted from after the claim it is over a little later than in fact."""
    return (one.lease_until - one.server_time).total_seconds()

"""Random trouble on both sides of a consumer: whatever happens, each event is finished once and acknowledged."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from orbit.protocol.errors import ErrorCode
from orbit.protocol.limits import Limits
from orbit.sdk import Delivery, EventConsumer, Unavailable
from tests.support.consuming import Script, consuming, whole
from tests.support.fake_orbit import Cut, Drop, FakeOrbit, Ignore, Misdeed, Refuse

DELIVERIES = 80
TROUBLES = 60
MISDEEDS: tuple[Misdeed, ...] = (Cut(), Drop(), Ignore(), Refuse(ErrorCode.UNAVAILABLE))
REQUESTS = ("event.ack", "event.ack", "event.release", "consumer.capacity", "consumer.hello")


class Trouble:
    """One thing after the other goes wrong, chosen by the seed; `happened` counts what did."""

    def __init__(self, orbit: FakeOrbit, seed: int) -> None:
        self.orbit = orbit
        self.dice = random.Random(seed)
        self.over = False
        self.finished: Counter[str] = Counter()
        self.happened: Counter[str] = Counter()

    async def handle(self, delivery: Delivery) -> None:
        """Fail, be unavailable, take long or finish."""
        for _ in range(self.dice.randrange(4)):
            await asyncio.sleep(0)
        luck = 1.0 if self.over else self.dice.random()
        if luck < 0.15:
            self.happened["failed"] += 1
            raise ValueError
        if luck < 0.2:
            self.happened["unavailable"] += 1
            raise Unavailable
        self.finished[delivery.delivery_id] += 1

    async def cause(self, consumer: EventConsumer) -> None:
        """Cause all of it, a little at a time, then put everything right."""
        for _ in range(TROUBLES):
            match self.dice.randrange(6):
                case 0 | 1:
                    misdeed = self.dice.choice(MISDEEDS)
                    self.happened[type(misdeed).__name__] += 1
                    self.orbit.misbehave(self.dice.choice(REQUESTS), misdeed)
                case 2:
                    self.lapse()
                case 3:
                    consumer.pause()
                    self.happened["paused"] += 1
                case 4:
                    consumer.resume()
                case _:
                    if self.orbit.connections and self.orbit.connection.open:
                        self.happened["cut"] += 1
                        self.orbit.connection.socket.transport.abort()
            self.emit()
            await asyncio.sleep(self.dice.random() * 0.02)
        self.over = True
        self.orbit.misdeeds.clear()
        while len(self.orbit.deliveries) < DELIVERIES:
            self.emit()

    def emit(self) -> None:
        if len(self.orbit.deliveries) < DELIVERIES:
            self.orbit.emit()

    def lapse(self) -> None:
        """Let the leases of some deliveries end, as time would."""
        for delivery in self.orbit.deliveries.values():
            if delivery.state == "LEASED" and (self.over or self.dice.random() < 0.3):
                self.happened["lapsed"] += 1
                self.orbit.lapse(delivery)


@pytest.mark.parametrize("seed", range(1, 7))
async def test_whatever_happens_every_event_is_finished_once_and_acknowledged(seed: int) -> None:
    async with FakeOrbit(limits=Limits(control_s=0.1, heartbeat_s=0.1)) as orbit:
        trouble = Trouble(orbit, seed)
        script = Script(trouble.handle)
        async with consuming(orbit.client(), orbit.subscription_id, script, concurrency=3, prefetch=5) as consumer:
            await trouble.cause(consumer)
            async with asyncio.timeout(30):
                while any(one.state != "ACKED" for one in orbit.deliveries.values()) or consumer.counts.pending:
                    consumer.resume()
                    trouble.lapse()
                    await asyncio.sleep(0.02)
            assert whole(consumer.counts)
        assert len(orbit.deliveries) == DELIVERIES
        assert {one.receipts for one in orbit.deliveries.values()} == {1}
        assert trouble.finished == Counter(dict.fromkeys(orbit.deliveries, 1))
        counts = consumer.counts
        assert (counts.waiting, counts.running, counts.pending) == (0, 0, 0)
        assert counts.failed == trouble.happened["failed"] + trouble.happened["unavailable"]
        assert len(trouble.happened) >= 7, trouble.happened
        assert counts.reconnects > 0

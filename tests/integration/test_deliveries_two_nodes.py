"""Two nodes serve one subscription: random consumers, releases, crashes and sweeps, all at once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from orbit.server.sweep import Sweeper
from tests.support.deliveries import Shop, fresh_platform, open_node, words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orbit.mysql.dsn import DSN
    from orbit.protocol.events_v1 import Delivery
    from orbit.sandbox import MySQLServer

EVENTS = 60
WINDOW = 5
CONSUMERS = 6


@pytest.fixture(scope="module")
def shared_dsn(mysql: MySQLServer) -> Iterator[DSN]:
    with fresh_platform(mysql) as dsn:
        yield dsn


@dataclass
class Witness:
    """What must hold of all consumers together."""

    held: dict[str, int] = field(default_factory=dict)
    """Deliveries that some consumer holds under a lease that nobody has ended yet: the epoch."""
    epochs: dict[str, int] = field(default_factory=dict)
    attempts: Counter[str] = field(default_factory=Counter)
    acked: set[str] = field(default_factory=set)
    happened: Counter[str] = field(default_factory=Counter)

    def leased(self, one: Delivery) -> None:
        """A consumer was given a lease."""
        name, epoch = one.proof.delivery_id, one.proof.epoch
        assert name not in self.held, "leased to two consumers at once"
        assert name not in self.acked, "leased after its ACK"
        assert epoch == self.epochs.get(name, 0) + 1, "an epoch was used twice or left out"
        self.attempts[name] += 1
        assert one.attempt == self.attempts[name]
        self.held[name] = self.epochs[name] = epoch

    def lets_go(self, one: Delivery) -> None:
        """The consumer is about to end its lease; from now on somebody else may get it."""
        del self.held[one.proof.delivery_id]


class Consumer:
    """One of several that share a subscription; does with each delivery whatever the dice say."""

    def __init__(self, shop: Shop, subscription: str, witness: Witness, dice: random.Random) -> None:
        self.shop = shop
        self.subscription = subscription
        self.witness = witness
        self.dice = dice

    async def run(self, *, calm: bool) -> None:
        """Take and handle once; a calm consumer acknowledges everything."""
        for one in await self.shop.claim(self.subscription, room=self.dice.randint(1, 4)):
            self.witness.leased(one)
            await asyncio.sleep(self.dice.choice((0, 0, 0.001)))
            what = "ack" if calm else self.dice.choice(("ack", "ack", "give back", "crash", "late ack", "lost ack"))
            self.witness.happened[what] += 1
            await getattr(self, what.replace(" ", "_"))(one)

    async def ack(self, one: Delivery) -> None:
        """Acknowledge in time."""
        self.witness.lets_go(one)
        self.witness.acked.add(one.proof.delivery_id)
        assert words(await self.shop.ack(self.subscription, one.proof)) == ["ACKED"]

    async def give_back(self, one: Delivery) -> None:
        """Release what was not started, twice: the first answer was lost."""
        self.witness.lets_go(one)
        self.witness.attempts[one.proof.delivery_id] -= 1
        first = words(await self.shop.release(self.subscription, one.proof, started=False))
        again = words(await self.shop.release(self.subscription, one.proof, started=False))
        assert first == ["RELEASED"]
        # By then somebody else may have been given it.
        assert again in (["RELEASED"], ["REFUSED STALE_EPOCH"])

    async def crash(self, one: Delivery) -> None:
        """Say nothing; the lease runs out."""
        self.witness.lets_go(one)
        await self.shop.change(
            "UPDATE deliveries SET lease_until = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND "
            f"WHERE delivery_id = '{one.proof.delivery_id}' AND epoch = {one.proof.epoch} AND state = 'LEASED'"
        )

    async def late_ack(self, one: Delivery) -> None:
        """Acknowledge after the lease ran out; it counts unless somebody else was given it meanwhile."""
        await self.crash(one)
        if self.dice.random() < 0.5:
            with suppress(TimeoutError):
                await self.until_somebody_else_has(one)
        taken = self.witness.epochs[one.proof.delivery_id] > one.proof.epoch
        (verdict,) = words(await self.shop.ack(self.subscription, one.proof))
        if verdict == "ACKED":
            assert not taken
            self.witness.acked.add(one.proof.delivery_id)
        else:
            assert verdict == "REFUSED STALE_EPOCH"
        self.witness.happened[f"late ack {verdict}"] += 1

    async def until_somebody_else_has(self, one: Delivery) -> None:
        """Wait for the next lease of it; raises TimeoutError where all the others wait as well."""
        async with asyncio.timeout(0.5):
            while self.witness.epochs[one.proof.delivery_id] == one.proof.epoch:
                await asyncio.sleep(0.001)

    async def lost_ack(self, one: Delivery) -> None:
        """Acknowledge twice: the first answer was lost."""
        await self.ack(one)
        assert words(await self.shop.ack(self.subscription, one.proof)) == ["ACKED"]


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_no_delivery_has_two_holders_no_window_overflows_and_nothing_is_lost(shared_dsn: DSN, seed: int) -> None:
    nodes = [open_node(shared_dsn, lanes=6), open_node(shared_dsn, lanes=6)]
    try:
        shop = await Shop.open(nodes[0], shared_dsn)
        shops = [shop, shop.through(nodes[1])]
        subscription = await shop.subscribe(window=WINDOW, budget=100)
        witness = Witness()
        consumers = [
            Consumer(shops[number % 2], subscription, witness, random.Random(f"{seed}.{number}"))
            for number in range(CONSUMERS)
        ]
        largest = 0
        over = asyncio.Event()

        async def produce() -> None:
            for _ in range(EVENTS):
                await shop.submit()

        async def consume(consumer: Consumer) -> None:
            while not over.is_set():
                await consumer.run(calm=False)

        async def sweep(sweeper: Sweeper) -> None:
            while not over.is_set():
                await sweeper.sweep_once()

        async def watch() -> None:
            nonlocal largest
            while not over.is_set():
                ((count,),) = await shops[1].sql(
                    f"SELECT COUNT(*) FROM deliveries WHERE subscription_id = '{subscription}' AND in_window = 1"
                )
                largest = max(largest, count)

        async with asyncio.TaskGroup() as group:
            for consumer in consumers:
                group.create_task(consume(consumer))
            for node in nodes:
                group.create_task(sweep(Sweeper(node)))
            group.create_task(watch())
            await produce()
            async with asyncio.timeout(60):
                while len(witness.acked) < EVENTS - WINDOW:
                    await asyncio.sleep(0.01)
            over.set()

        # What is left was put down by its last holder; calm consumers take it all.
        async with asyncio.timeout(60):
            while len(witness.acked) < EVENTS:
                await Sweeper(nodes[0]).sweep_once()
                await consumers[0].run(calm=True)

        rows = await shop.rows(subscription)
        assert [row.state for row in rows] == ["ACKED"] * EVENTS
        assert {row.delivery_id for row in rows} == witness.acked
        assert {row.delivery_id: row.epoch for row in rows} == witness.epochs
        assert {row.delivery_id: row.attempts for row in rows} == dict(witness.attempts)
        assert witness.held == {}
        assert 0 < largest <= WINDOW
        # The run means nothing unless all of it happened.
        wanted = {"ack", "give back", "crash", "late ack", "lost ack", "late ack ACKED", "late ack REFUSED STALE_EPOCH"}
        assert wanted <= witness.happened.keys()
    finally:
        for node in nodes:
            await node.pool.close()

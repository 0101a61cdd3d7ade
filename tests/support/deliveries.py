"""One application's deliveries on nodes of the test's own: real services over a real database, no HTTP between.

Tests that move leases into the past or count what a sweeper did need a database that no other sweeper works on.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Raw

from orbit.mysql.lane import Lane
from orbit.mysql.pool import LanePool
from orbit.mysql.statement import Statement
from orbit.protocol.events_v1 import Ack, Delivery, Proof, Release, Released, Verdict
from orbit.protocol.http_v1 import CreateSubscription, EventType, SubmitTask
from orbit.protocol.limits import Limits
from orbit.protocol.values import new_id
from orbit.sandbox import PLATFORM_PRIVILEGES
from orbit.server.bootstrap import bootstrap
from orbit.server.migrate import migrate
from orbit.server.parts import Platform
from orbit.server.services import access, deliveries, submit, subscriptions
from orbit.server.wake import Wake

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from orbit.mysql.dsn import DSN
    from orbit.mysql.transaction import Transaction
    from orbit.sandbox import MySQLServer
    from orbit.server.services.access import Caller

BUDGET_S = 10.0


class Row(NamedTuple):
    """What a test looks at in a row of `deliveries`."""

    delivery_id: str
    state: str
    attempts: int
    attempt_budget: int
    epoch: int
    in_window: int


@contextmanager
def fresh_platform(mysql: MySQLServer) -> Iterator[DSN]:
    """A migrated platform database of the test's own."""
    database = mysql.create_database("deliveries")
    try:
        dsn = mysql.create_account(database, PLATFORM_PRIVILEGES)
        migrate(dsn)
        yield dsn
    finally:
        mysql.drop_database(database)


def open_node(dsn: DSN, *, lanes: int = 4, limits: Limits | None = None) -> Platform:
    """One node's parts, without its listener and its sweeper; close its pool when done."""
    return Platform(LanePool(dsn, lanes, name="test-node"), Wake(), limits or Limits())


@dataclass(frozen=True, slots=True)
class Shop:
    """A fresh application with one queue, seen through one node; `through` gives the same seen through another."""

    platform: Platform
    caller: Caller

    @classmethod
    async def open(cls, platform: Platform, dsn: DSN) -> Shop:
        """Bootstrap names that no other test has."""
        name = new_id()
        made = await asyncio.to_thread(
            bootstrap, dsn, application=name, namespace=name, environment="test", queue="events", event_access=True
        )
        return cls(platform, await access.authenticate(platform.pool, made["token"], platform.limits))

    def through(self, platform: Platform) -> Shop:
        """The same application at another node."""
        return replace(self, platform=platform)

    async def subscribe(self, *, window: int = 64, budget: int = 10) -> str:
        """Subscribe to task.submitted, so that each submit is one event."""
        request = CreateSubscription(
            queue_id=self.caller.queue_id, event_types=[EventType.SUBMITTED], window=window, attempt_budget=budget
        )
        made, _ = await subscriptions.create(self.platform, self.caller, new_id(), request)
        return made.subscription_id

    async def submit(self, count: int = 1) -> list[str]:
        """Submit tasks one after the other; their ids."""
        request = SubmitTask(
            queue_id=self.caller.queue_id,
            handler="test.handler",
            handler_version="v1",
            payload_version="v1",
            payload=Raw(b"{}"),
        )
        accepted = [await submit.submit(self.platform, self.caller, new_id(), request, {}) for _ in range(count)]
        return [one.task.task_id for one in accepted]

    async def set_enabled(self, subscription_id: str, enabled: bool) -> None:
        """Pause or resume."""
        await subscriptions.set_enabled(self.platform, self.caller, subscription_id, enabled=enabled)

    async def claim(self, subscription_id: str, room: int = 100) -> list[Delivery]:
        """Claim as a consumer's session does."""
        return await deliveries.claim(self.platform, subscription_id, room)

    async def ack(self, subscription_id: str, *proofs: Proof) -> list[Verdict]:
        """Acknowledge."""
        return list((await deliveries.acknowledge(self.platform, subscription_id, Ack(deliveries=proofs))).verdicts)

    async def release(self, subscription_id: str, *proofs: Proof, started: bool) -> list[Verdict]:
        """Release all of these, started or not."""
        items = tuple(Released(proof=one, started=started) for one in proofs)
        return list((await deliveries.release(self.platform, subscription_id, Release(deliveries=items))).verdicts)

    async def rows(self, subscription_id: str) -> list[Row]:
        """The subscription's deliveries, oldest first, straight from the table."""
        columns = ", ".join(Row._fields)
        found = await self.sql(
            f"SELECT {columns} FROM deliveries WHERE subscription_id = '{subscription_id}' ORDER BY delivery_no"
        )
        return [Row(*one) for one in found]

    async def end_leases(self, subscription_id: str) -> None:
        """Let all leases of a subscription have run out a second ago."""
        await self.platform.pool.run(lambda tx: tx.execute(_leases_over(subscription_id)), budget_s=BUDGET_S)

    async def sql(self, query: str) -> list[tuple[Any, ...]]:
        """Read with SQL of the test's own."""

        async def work(tx: Transaction) -> list[tuple[Any, ...]]:
            return await tx.fetch(Statement(query.replace("%", "%%")))

        return await self.platform.pool.read(work, budget_s=BUDGET_S)

    async def change(self, text: str) -> int:
        """Write with SQL of the test's own; the number of rows it matched."""

        async def work(tx: Transaction) -> int:
            return (await tx.execute(Statement(text.replace("%", "%%")))).rowcount

        return await self.platform.pool.run(work, budget_s=BUDGET_S)


def words(verdicts: Iterable[Verdict]) -> list[str]:
    """Disposition and code of each verdict, in order."""
    return [f"{one.disposition} {one.code}" if one.code else str(one.disposition) for one in verdicts]


def proofs(leased: Sequence[Delivery]) -> list[Proof]:
    """What the leases are proved with."""
    return [one.proof for one in leased]


def event_text(leased: Delivery) -> str:
    """The frozen text that will be spliced into the frame."""
    assert isinstance(leased.event, Raw)
    return bytes(leased.event).decode()


def _leases_over(subscription_id: str) -> Statement:
    return Statement(
        "UPDATE deliveries SET lease_until = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND "
        f"WHERE subscription_id = '{subscription_id}' AND state = 'LEASED'"
    )


async def end_leases(dsn: DSN, subscription_id: str) -> None:
    """Let all leases of a subscription have run out a second ago, on a connection of the test's own."""
    lane = Lane(dsn)
    try:
        await lane.run(lambda tx: tx.execute(_leases_over(subscription_id)), budget_s=BUDGET_S)
    finally:
        await lane.close()

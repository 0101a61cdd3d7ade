"""The receiver's database on a bench: tables made by `init`, stores on lanes of their own, and a look from outside."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from orbit.mysql.lane import Lane
from orbit.mysql.statement import Statement
from orbit.mysql.times import DEFAULT_TIMES, LaneTimes
from orbit.sandbox.server import admin_cursor
from receiver.install import init
from receiver.store import Store
from tests.support.events import QUEUE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orbit.mysql.dsn import DSN
    from orbit.mysql.transaction import Transaction
    from tests.support.mysql import ReceiverDSNs

NAME = "task-result-view"

_WAITING = """
    SELECT COUNT(DISTINCT waits.REQUESTING_ENGINE_TRANSACTION_ID) AS waiting
    FROM performance_schema.data_lock_waits AS waits
    JOIN performance_schema.data_locks AS locks ON locks.ENGINE_LOCK_ID = waits.REQUESTING_ENGINE_LOCK_ID
    WHERE locks.OBJECT_SCHEMA = DATABASE()
"""


class Bench:
    """One receiver database with its tables. Everything opened through it is closed with it."""

    def __init__(self, dsns: ReceiverDSNs, stack: AsyncExitStack) -> None:
        self.dsns = dsns
        self._stack = stack

    def lane(self, dsn: DSN | None = None, *, times: LaneTimes = DEFAULT_TIMES, name: str = "test") -> Lane:
        """A lane of the run-time account, or of `dsn`."""
        lane = Lane(dsn or self.dsns.run, times, name=name)
        self._stack.push_async_callback(lane.close)
        return lane

    def store(
        self,
        *,
        consumer_name: str = NAME,
        queue_id: str = QUEUE,
        dsn: DSN | None = None,
        times: LaneTimes = DEFAULT_TIMES,
        kind: type[Store] = Store,
    ) -> Store:
        """A new store over a new lane."""
        return kind(self.lane(dsn, times=times), consumer_name=consumer_name, queue_id=queue_id)

    def store_over(self, lane: Lane) -> Store:
        """A new store over this lane."""
        return Store(lane, consumer_name=NAME, queue_id=QUEUE)

    def sql(self, text: str, *values: Any) -> list[dict[str, Any]]:
        """Rows of a statement run by the administrator on a connection of its own, committed at once."""
        with admin_cursor(self.dsns.admin) as cursor:
            cursor.execute(text, values or None)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def inbox(self) -> list[dict[str, Any]]:
        """All inbox rows as another connection sees them, by event id."""
        return self.sql("SELECT * FROM receiver_inbox ORDER BY consumer_name, queue_id, event_id")

    def views(self) -> list[dict[str, Any]]:
        """All views as another connection sees them, by task id."""
        return self.sql("SELECT * FROM receiver_task_views ORDER BY consumer_name, queue_id, task_id")

    def view(self) -> dict[str, Any]:
        """The only view."""
        (view,) = self.views()
        return view

    @asynccontextmanager
    async def locked_views(self) -> AsyncIterator[None]:
        """Another session holds the row locks of all views while inside."""
        lane = self.lane(self.dsns.admin, name="locker")
        held, release = asyncio.Event(), asyncio.Event()

        async def hold(transaction: Transaction) -> None:
            await transaction.fetch(Statement("SELECT task_id FROM receiver_task_views FOR UPDATE"))
            held.set()
            await release.wait()

        async with asyncio.TaskGroup() as group:
            group.create_task(lane.read(hold, budget_s=30))
            async with asyncio.timeout(10):
                await held.wait()
            try:
                yield
            finally:
                release.set()

    async def until_waiting(self, count: int) -> None:
        """Wait until so many transactions of this database wait for a row lock; at most 10 s."""
        async with asyncio.timeout(10):
            while self.sql(_WAITING)[0]["waiting"] < count:
                await asyncio.sleep(0.01)

    def applied_flags(self) -> dict[str, int]:
        """Event id -> applied, over the whole inbox."""
        return {row["event_id"]: row["applied"] for row in self.inbox()}


@asynccontextmanager
async def bench(dsns: ReceiverDSNs) -> AsyncIterator[Bench]:
    """Make the tables with the account that may only CREATE, and give the bench."""
    assert await init(dsns.init) == 0
    async with AsyncExitStack() as stack:
        yield Bench(dsns, stack)

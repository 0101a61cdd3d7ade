"""A database with one small table, lanes on it, and a look from outside."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from orbit.mysql.lane import Lane
from orbit.mysql.pool import LanePool
from orbit.mysql.statement import Statement
from orbit.mysql.times import DEFAULT_TIMES, LaneTimes
from orbit.sandbox.server import admin_cursor
from toxiproxy import MySQLProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from orbit.mysql.dsn import DSN
    from orbit.mysql.transaction import Transaction
    from orbit.sandbox import MySQLServer

T = TypeVar("T")
Closable = TypeVar("Closable", Lane, LanePool)

PRIVILEGES = ("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "DROP", "ALTER", "INDEX", "EXECUTE")
TABLE = "CREATE TABLE t (id VARCHAR(64) COLLATE utf8mb4_0900_bin PRIMARY KEY, v INT NOT NULL DEFAULT 0) ENGINE=InnoDB"
INSERT = Statement("INSERT INTO t (id) VALUES (%s)", ("id",))
BUMP = Statement("UPDATE t SET v = v + 1 WHERE id = %s", ("id",))
COUNT = Statement("SELECT COUNT(*) FROM t")
PATIENCE_S = 15.0
"""How long a test waits for something that must happen; nothing takes as long when all is well."""


def inserting(*ids: str) -> Callable[[Transaction], Awaitable[None]]:
    """A work that inserts these rows, one statement each."""

    async def work(transaction: Transaction) -> None:
        for row in ids:
            await transaction.execute(INSERT, {"id": row})

    return work


def stopping_at(gate: Gate) -> Callable[[Transaction], Awaitable[None]]:
    """A work that does nothing but stop at this gate."""

    async def work(_: Transaction) -> None:
        await gate.stop()

    return work


def holding(row: str, gate: Gate) -> Callable[[Transaction], Awaitable[None]]:
    """A work that changes this row and keeps its lock until the gate opens."""

    async def work(transaction: Transaction) -> None:
        await transaction.execute(BUMP, {"id": row})
        await gate.stop()

    return work


class Gate:
    """Lets the work of a lane stop at a place and tells the test that it is there."""

    def __init__(self) -> None:
        self._reached = asyncio.Event()
        self._opened = asyncio.Event()

    async def stop(self) -> None:
        """Called by the work."""
        self._reached.set()
        await self._opened.wait()

    async def reached(self) -> None:
        """Wait until the work is there."""
        async with asyncio.timeout(PATIENCE_S):
            await self._reached.wait()

    def open(self) -> None:
        """Let the work go on."""
        self._opened.set()


class LaneBench:
    """One database. Lanes made here are closed with it."""

    def __init__(self, dsn: DSN, admin: DSN, stack: AsyncExitStack) -> None:
        self.dsn = dsn
        self.admin = admin
        self._stack = stack

    def lane(self, times: LaneTimes = DEFAULT_TIMES, *, dsn: DSN | None = None) -> Lane:
        """A lane on this database, or on another DSN."""
        lane = Lane(dsn or self.dsn, times)
        self._stack.push_async_callback(lane.close)
        return lane

    def sql(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """Rows of a statement run by the administrator on a connection of its own, committed at once."""
        with admin_cursor(self.admin) as cursor:
            cursor.execute(text, values or None)
            return list(cursor.fetchall())

    def ids(self) -> list[str]:
        """The rows that another connection sees."""
        return [row[0] for row in self.sql("SELECT id FROM t ORDER BY id")]

    def kill(self, connection_id: int, *, what: str = "CONNECTION") -> None:
        """KILL CONNECTION or KILL QUERY."""
        self.sql(f"KILL {what} {connection_id:d}")

    async def waits_for_lock(self, connection_id: int) -> None:
        """Return as soon as this session waits for a row lock."""
        await until(
            lambda: bool(
                self.sql(
                    "SELECT 1 FROM performance_schema.data_lock_waits w JOIN performance_schema.threads t"
                    " ON t.thread_id = w.requesting_thread_id WHERE t.processlist_id = %s",
                    connection_id,
                )
            )
        )

    async def gone(self, connection_id: int) -> None:
        """Return as soon as the server has ended this session, and with it its transaction."""
        await until(lambda: not self.sql("SELECT 1 FROM performance_schema.processlist WHERE id = %s", connection_id))


@asynccontextmanager
async def closing(one: Closable) -> AsyncIterator[Closable]:
    """Close a lane or a pool whatever happens inside: what is left open warns in some later test."""
    try:
        yield one
    finally:
        await one.close()


def be_patient(lane: Lane) -> None:
    """Give a lane its usual deadlines back: what has to work after the fault may be slow on a busy machine."""
    lane._times = lane._dialer._times = DEFAULT_TIMES


async def until(condition: Callable[[], bool]) -> None:
    """Return as soon as `condition` holds; TimeoutError after PATIENCE_S."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


async def settled(task: asyncio.Task[T]) -> T:
    """Give the result of a task that must end soon; raises what it raised."""
    done, _ = await asyncio.wait({task}, timeout=PATIENCE_S)
    if not done:
        task.cancel()
        raise AssertionError("the task hangs")
    return task.result()


@asynccontextmanager
async def lane_bench(server: MySQLServer) -> AsyncIterator[LaneBench]:
    """Make a database with the table, and drop it at the end."""
    database = server.create_database("lane")
    async with AsyncExitStack() as stack:
        stack.callback(server.drop_database, database)
        bench = LaneBench(server.create_account(database, PRIVILEGES), database.admin, stack)
        bench.sql(TABLE)
        yield bench


@asynccontextmanager
async def proxied_lane(bench: LaneBench, times: LaneTimes = DEFAULT_TIMES) -> AsyncIterator[tuple[MySQLProxy, Lane]]:
    """A fault proxy before the bench's server and a lane through it, for at most PATIENCE_S."""
    async with MySQLProxy(*bench.dsn.hosts[0]) as proxy, asyncio.timeout(PATIENCE_S):
        lane = bench.lane(times, dsn=bench.dsn.with_host("127.0.0.1", proxy.port))
        yield proxy, lane
        await lane.close()

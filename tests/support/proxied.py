"""A table of a real MySQL for the fault proxy's own tests, looked at from outside the proxy."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import aiomysql
import pymysql
from pymysql.err import OperationalError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orbit.mysql.dsn import DSN

DEADLINE_S: Final = 10.0


class Table:
    """The table `t (id INT PRIMARY KEY)` in a database of its own."""

    def __init__(self, admin: DSN) -> None:
        self.dsn = admin
        self.host, self.port = admin.hosts[0]
        self._ids = itertools.count(1)

    def options(self, port: int | None = None) -> dict[str, Any]:
        """What PyMySQL and aiomysql need to connect, to MySQL itself or to a proxy's port."""
        host = self.host if port is None else "127.0.0.1"
        return {"host": host, "port": port or self.port, "user": self.dsn.user, "password": self.dsn.password}

    def create(self) -> None:
        """Make the table."""
        self.run("CREATE TABLE t (id INT PRIMARY KEY)")

    def run(self, statement: str, *arguments: object) -> list[tuple[Any, ...]]:
        """Run one statement past the proxy."""
        connection = pymysql.connect(
            database=self.dsn.database, autocommit=True, read_timeout=DEADLINE_S, **self.options()
        )
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement, arguments)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def fresh(self) -> int:
        """An id that no row has."""
        return next(self._ids)

    def has(self, number: int) -> bool:
        """Whether a second, direct connection sees the row."""
        return bool(self.run("SELECT 1 FROM t WHERE id = %s", number))

    async def until_thread_ends(self, thread_id: int) -> None:
        """Wait until MySQL has ended a session, and with it what it had not committed."""
        async with asyncio.timeout(DEADLINE_S):
            while self.run("SELECT 1 FROM performance_schema.threads WHERE processlist_id = %s", thread_id):
                await asyncio.sleep(0.01)

    async def until_nobody_is_connected(self) -> None:
        """Wait until MySQL has no session at this database."""
        others = "SELECT 1 FROM performance_schema.processlist WHERE db = %s AND id <> CONNECTION_ID()"
        async with asyncio.timeout(DEADLINE_S):
            while self.run(others, self.dsn.database):
                await asyncio.sleep(0.01)

    async def until_a_lock_is_waited_for(self) -> None:
        """Wait until some session waits for a row lock of the table."""
        waits = "SELECT 1 FROM performance_schema.data_lock_waits w JOIN performance_schema.data_locks l ON"
        waits += " l.engine_lock_id = w.requesting_engine_lock_id WHERE l.object_schema = %s"
        async with asyncio.timeout(DEADLINE_S):
            while not self.run(waits, self.dsn.database):
                await asyncio.sleep(0.01)

    @asynccontextmanager
    async def client(self, port: int, *, client_flag: int = 0) -> AsyncIterator[aiomysql.Connection]:
        """An aiomysql connection through a proxy; dropped at the end.

        With a `client_flag` that the driver knows nothing of, only raw packets may be sent.
        """
        connection = aiomysql.Connection(db=self.dsn.database, client_flag=client_flag, **self.options(port))
        # The driver's own first statement would have to obey the flag.
        connection.autocommit_mode = None if client_flag else False
        await connection._connect()
        try:
            yield connection
        finally:
            connection.close()

    async def insert_and_commit(self, port: int, number: int) -> int | None:
        """Insert a row and commit, through a proxy; return None for OK, or the driver's error number."""
        async with self.client(port) as connection:
            try:
                await query(connection, f"INSERT INTO t VALUES ({number:d})")
                await connection.commit()
            except OperationalError as error:
                return int(error.args[0])
            return None


async def query(connection: aiomysql.Connection, statement: str) -> None:
    """Send one text and read its answer, the first of several; no cursor, which would ask for warnings too."""
    await connection.query(statement)

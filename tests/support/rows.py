"""Look into a node's database, or bring it into a state that the product cannot be asked for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from orbit.mysql.statement import Statement, compile_statement
from orbit.sandbox.server import admin_cursor

if TYPE_CHECKING:
    from orbit.mysql.dsn import DSN
    from orbit.mysql.transaction import Transaction
    from orbit.sandbox import MySQLServer
    from tests.support.platform import Node

DEADLINE_S = 10.0


def sql(statement: str) -> Statement:
    """Prepare SQL of the test's own, with :name for its parameters."""
    return compile_statement(text(statement))


async def rows(node: Node, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
    """Run one statement of the test's in a transaction of its own; the rows, if it has any."""

    async def work(tx: Transaction) -> list[tuple[Any, ...]]:
        return await tx.fetch(sql(statement), parameters)

    return await node.platform.pool.run(work, budget_s=10.0)


async def waiting_for_lock(mysql: MySQLServer, dsn: DSN, table: str) -> None:
    """Return once a session waits for the lock of a row of `table` in this database."""

    def waits() -> bool:
        with admin_cursor(mysql.admin) as cursor:
            return bool(
                cursor.execute(
                    "SELECT 1 FROM performance_schema.data_lock_waits w JOIN performance_schema.data_locks l"
                    " ON l.engine_lock_id = w.requesting_engine_lock_id"
                    " WHERE l.object_schema = %s AND l.object_name = %s",
                    (dsn.database, table),
                )
            )

    async with asyncio.timeout(DEADLINE_S):
        while not await asyncio.to_thread(waits):
            await asyncio.sleep(0.01)

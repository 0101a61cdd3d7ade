"""Look into a node's database, or bring it into a state that the product cannot be asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from orbit.mysql.statement import compile_statement

if TYPE_CHECKING:
    from orbit.mysql.transaction import Transaction
    from tests.support.platform import Node


async def rows(node: Node, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
    """Run one statement of the test's in a transaction of its own; the rows, if it has any."""
    statement = compile_statement(text(sql))

    async def work(tx: Transaction) -> list[tuple[Any, ...]]:
        return await tx.fetch(statement, parameters)

    return await node.platform.pool.run(work, budget_s=10.0)

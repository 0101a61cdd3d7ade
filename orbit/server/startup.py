"""Refuse to work on a server that would not keep what it confirmed, before anything depends on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit.mysql.checks import Requirements, judge, read_facts
from orbit.mysql.pool import LanePool
from orbit.protocol.limits import Limits

if TYPE_CHECKING:
    from orbit.mysql.checks import Problem
    from orbit.mysql.dsn import DSN


class UnfitServer(Exception):
    """The MySQL server is too old, another product, or set up to lose commits. Says each setting and what it needs."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("the MySQL server cannot be used: " + "; ".join(str(problem) for problem in problems))


async def check_server(pool: LanePool) -> None:
    """Raise UnfitServer, or the errors of `LanePool.read` when the server does not answer. Safe to cancel."""
    problems = judge(await pool.read(read_facts, budget_s=Limits().transaction_s), Requirements())
    if problems:
        raise UnfitServer(problems)


async def check_server_of(dsn: DSN) -> None:
    """Do `check_server` over a connection of its own."""
    pool = LanePool(dsn, 1, name="check")
    try:
        await check_server(pool)
    finally:
        await pool.close()

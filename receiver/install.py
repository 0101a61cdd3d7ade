"""`receiver init`: make the two tables in the receiver's own empty database. The account needs CREATE alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbit.mysql.errors import NotCommitted
from orbit.mysql.lane import Lane
from orbit.mysql.statement import Statement
from receiver.schema import PLATFORM_TABLES, TABLES, ddl

if TYPE_CHECKING:
    from orbit.mysql.dsn import DSN
    from orbit.mysql.transaction import Transaction

CALL_S: Final = 10.0

_TABLE_EXISTS: Final = 1050

# A database lists the tables that the account has any privilege on; CREATE on the database covers them all.
_PRESENT: Final = Statement("SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE()")
_FOREIGN_KEYS: Final = Statement(
    "SELECT COUNT(*) FROM information_schema.REFERENTIAL_CONSTRAINTS WHERE CONSTRAINT_SCHEMA = DATABASE()"
    " AND (TABLE_NAME IN ('receiver_inbox', 'receiver_task_views')"
    " OR REFERENCED_TABLE_NAME IN ('receiver_inbox', 'receiver_task_views'))"
)


class InstallRefused(Exception):
    """The database is not one to make the tables in; nothing was changed, or others made tables at the same time."""


def refusal(present: frozenset[str]) -> str | None:
    """Say why a database with these tables is refused, or None. Pure.

    Existing tables are never changed or repaired: after a failure half way somebody has to look.
    """
    existing = sorted(present & {table.name for table in TABLES})
    if existing:
        return f"{existing[0]} exists already; init runs once, in an empty database"
    platform = sorted(present & PLATFORM_TABLES)
    if platform:
        return f"the database holds {platform[0]}, a table of the platform; the receiver needs a database of its own"
    return None


async def init(dsn: DSN) -> int:
    """Make both tables and return the number of foreign keys on them or to them, as information_schema counts.

    Raises InstallRefused before any DDL, or when somebody else makes the same tables meanwhile; NotCommitted or
    CommitUnconfirmed where a CREATE TABLE failed or was not confirmed. Not to be cancelled and run again without
    looking: MySQL commits each statement by itself.
    """
    lane = Lane(dsn, name="receiver-init")
    try:
        await _check_present(lane)
        try:
            for statement in ddl():
                await lane.define(Statement(statement), budget_s=CALL_S)
        except NotCommitted as error:
            if error.errno == _TABLE_EXISTS:
                # It was not there a moment ago: another init runs.
                await _check_present(lane)
            raise
        return await lane.read(_count_foreign_keys, budget_s=CALL_S)
    finally:
        await lane.close()


async def _check_present(lane: Lane) -> None:
    present = frozenset(row[0] for row in await lane.read(lambda tx: tx.fetch(_PRESENT), budget_s=CALL_S))
    reason = refusal(present)
    if reason is not None:
        raise InstallRefused(reason)


async def _count_foreign_keys(transaction: Transaction) -> int:
    row = await transaction.fetch_one(_FOREIGN_KEYS)
    assert row is not None
    return int(row[0])

"""End what nobody ended in time: attempts whose lease is over, and tasks that waited until it was too late to start.

Looking takes no locks; each end is a transaction of its own, which looks again under the lock and passes over what
somebody else is at. So every node may do this at once. The events name the node.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import bindparam, literal_column, select, union_all

from orbit.mysql.errors import DatabaseError, Kind
from orbit.mysql.statement import compile_statement
from orbit.protocol.attempt_v1 import AttemptState
from orbit.runtime.logs import get_logger
from orbit.server import attempt_statements as sql
from orbit.server.decide import attempt as decide
from orbit.server.ledger import NEEDED, Ledger
from orbit.server.services import endings
from orbit.server.services.endings import Record
from orbit.server.tables import attempts, tasks
from orbit.server.wake import queue_key

if TYPE_CHECKING:
    from sqlalchemy import Select

    from orbit.mysql.statement import Statement
    from orbit.mysql.transaction import Transaction
    from orbit.server.parts import Platform

LAPSED: Final = "LEASE_EXPIRED"
UNSTARTED: Final = "UNSTARTED"
"""Outcomes of attempts that nobody reported: started or not."""

_log = get_logger(__name__)


def _leases_over(state: AttemptState) -> Select[Any]:
    return (
        select(attempts.c.queue_id, attempts.c.task_id, attempts.c.attempt_id)
        .with_hint(attempts, "FORCE INDEX (ix_attempts_lease)", "mysql")
        .where(attempts.c.state == literal_column(f"'{state.value}'"), attempts.c.lease_until <= sql.NOW)
        .order_by(attempts.c.lease_until)
        .limit(bindparam("batch"))
    )


LEASES_OVER: Final = compile_statement(union_all(_leases_over(AttemptState.LEASED), _leases_over(AttemptState.RUNNING)))
OVERDUE: Final = compile_statement(
    select(tasks.c.queue_id, tasks.c.task_id)
    .with_hint(tasks, "FORCE INDEX (ix_tasks_overdue)", "mysql")
    .where(tasks.c.state == literal_column("'WAITING'"), tasks.c.start_before <= sql.NOW)
    .order_by(tasks.c.start_before)
    .limit(bindparam("batch"))
)
_OVERDUE_TASK: Final = (*NEEDED, tasks.c.deadline_at, tasks.c.latest_start_at)
_LOCK_OVERDUE: Final = compile_statement(
    select(*_OVERDUE_TASK)
    .where(tasks.c.task_id == bindparam("task_id"), tasks.c.state == literal_column("'WAITING'"))
    .with_for_update(skip_locked=True)
)


async def end_leases(platform: Platform) -> int:
    """End the attempts whose lease is over now; how many. Raises the errors of `LanePool.run`; safe to cancel."""
    return await _end_all(platform, LEASES_OVER, _end_lease)


async def end_overdue(platform: Platform) -> int:
    """End the WAITING tasks whose deadline or latest start has come; as `end_leases`."""
    return await _end_all(platform, OVERDUE, _end_overdue)


async def _end_all(platform: Platform, find: Statement, end: Callable[..., Awaitable[frozenset[str] | None]]) -> int:
    batch = platform.limits.sweep_batch
    budget_s = platform.limits.transaction_s

    count = 0
    refused: set[tuple[str, ...]] = set()

    async def look(tx: Transaction) -> list[tuple[Any, ...]]:
        # Past those that stand first for good.
        return await tx.fetch(find, {"batch": batch + len(refused)})

    while True:
        found = await platform.pool.read(look, budget_s=budget_s)
        ended, known = 0, len(refused)
        for names in found:
            if names in refused:
                continue
            woken = await _end_one(platform, end, names, refused)
            if woken is None:
                continue
            ended += 1
            for key in (*woken, queue_key(names[0])):
                platform.wake.notify(key)
        count += ended
        # Where nothing could be ended, others are at it.
        if len(found) < batch + known or (ended == 0 and len(refused) == known):
            return count


async def _end_one(
    platform: Platform,
    end: Callable[..., Awaitable[frozenset[str] | None]],
    names: tuple[str, ...],
    refused: set[tuple[str, ...]],
) -> frozenset[str] | None:
    async def work(tx: Transaction) -> frozenset[str] | None:
        return await end(tx, platform, *names)

    try:
        return await platform.pool.run_again(work, budget_s=platform.limits.transaction_s)
    except DatabaseError as error:
        if error.kind not in {Kind.DATA, Kind.DEFECT}:
            raise
        # One row that cannot be written must not keep all the others from their end.
        _log.error("cannot end", names=" ".join(names[1:]), error=type(error).__name__, errno=error.errno)
        refused.add(names)
        return None


async def _end_lease(
    tx: Transaction, platform: Platform, queue_id: str, task_id: str, attempt_id: str
) -> frozenset[str] | None:
    """End one attempt unless it has ended or was renewed meanwhile; the keys to notify."""
    ledger = await Ledger.open(tx, queue_id)
    found = await tx.fetch_one(sql.LOCK_LAPSED, {"task_id": task_id, "attempt_id": attempt_id})
    if found is None:
        return None
    row = endings.row_of(found)
    row["now"] = ledger.at(row)
    if row["attempt_state"] == AttemptState.ENDED or row["now"] < row["lease_until"]:
        return None
    change = replace(decide.end(endings.facts_of(row), decide.Lapse.LEASE_OVER), node=platform.node)
    started = row["started_at"] is not None
    record = Record(
        outcome=LAPSED if started else UNSTARTED,
        error_code=decide.LEASE_EXPIRED if started else decide.UNSTARTED,
    )
    await endings.write(tx, ledger, row, change, record)
    return ledger.woken


async def _end_overdue(tx: Transaction, platform: Platform, queue_id: str, task_id: str) -> frozenset[str] | None:
    """End one task unless it waits no more; the keys to notify."""
    ledger = await Ledger.open(tx, queue_id)
    found = await tx.fetch_one(_LOCK_OVERDUE, {"task_id": task_id})
    if found is None:
        return None
    row = dict(zip((column.key for column in _OVERDUE_TASK), found, strict=True))
    change = decide.overdue(
        ledger.at(row),
        deadline_at=row["deadline_at"],
        latest_start_at=row["latest_start_at"],
        effect_uncertain=bool(row["effect_uncertain"]),
    )
    if change is None:
        return None
    await ledger.write(row, replace(change, node=platform.node))
    return ledger.woken

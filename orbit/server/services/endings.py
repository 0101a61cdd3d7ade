"""Write the end of an attempt: task, event, deliveries, attempt and permit, in the caller's transaction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orbit.protocol.http_v1 import RecoverySafety
from orbit.server import attempt_statements as sql
from orbit.server.decide.attempt import Facts

if TYPE_CHECKING:
    from datetime import datetime

    from orbit.mysql.transaction import Transaction
    from orbit.server.decide.task import Change
    from orbit.server.ledger import Ledger, TaskRow

Row = dict[str, Any]
"""An attempt with its task, by the names of `attempt_statements.COLUMNS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What the attempt's row keeps of its end. `outcome` is a worker's word, or why there was none."""

    outcome: str
    error_code: str | None = None
    result: str | None = field(default=None, repr=False)
    retryable: bool | None = None


def row_of(found: tuple[Any, ...]) -> Row:
    """Name the values of a row that `attempt_statements` found."""
    return dict(zip(sql.COLUMNS, found, strict=True))


def facts_of(row: Row) -> Facts:
    """What deciding about an attempt's end needs of its row."""
    return Facts(
        now=row["now"],
        attempt_id=row["attempt_id"],
        attempt_count=row["attempt_count"],
        started=row["started_at"] is not None,
        cancel_requested=row["cancel_requested_at"] is not None,
        effect_uncertain=bool(row["effect_uncertain"]),
        recovery_safety=RecoverySafety(row["recovery_safety"]),
        max_attempts=row["retry_max_attempts"],
        initial_delay_ms=row["retry_initial_delay_ms"],
        max_delay_ms=row["retry_max_delay_ms"],
        deadline_at=row["deadline_at"],
        latest_start_at=row["latest_start_at"],
    )


async def write(tx: Transaction, ledger: Ledger, row: Row, change: Change, record: Record) -> TaskRow:
    """Write the ending of a locked attempt; gives the task as it is now."""
    task = await ledger.write(row, change)
    ended_at: datetime = task["updated_at"]
    await tx.execute(
        sql.END_ATTEMPT,
        {
            "the_attempt_id": row["attempt_id"],
            "ended_at": ended_at,
            "outcome": record.outcome,
            "error_code": record.error_code,
            "result": record.result,
            "retryable": record.retryable,
            "decision": None if change.decision is None else change.decision.value,
            "delay_ms": change.delay_ms,
            "next_available_at": change.available_at,
        },
    )
    if row["concurrency_key"] is not None:
        await tx.execute(
            sql.RELEASE_PERMIT,
            {
                "the_queue_id": row["queue_id"],
                "the_key": row["concurrency_key"],
                "the_attempt_id": row["attempt_id"],
            },
        )
    return task

"""Read tasks, and show a row of the database as what the interface calls a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import UNSET, Raw
from sqlalchemy import bindparam, select

from orbit.mysql.statement import compile_statement
from orbit.protocol.http_v1 import RecoverySafety, RetryPolicy, Task, TaskState
from orbit.protocol.values import format_time
from orbit.server.services.access import Caller, not_found, reach
from orbit.server.tables import tasks

if TYPE_CHECKING:
    from datetime import datetime

    from msgspec import UnsetType

    from orbit.mysql.transaction import Transaction
    from orbit.server.ledger import TaskRow
    from orbit.server.parts import Platform

_TASK: Final = compile_statement(select(tasks).where(tasks.c.task_id == bindparam("task_id")))


async def get(platform: Platform, caller: Caller, task_id: str) -> Task:
    """Read one task. Raises ApiError NOT_FOUND or PERMISSION_DENIED. Safe to cancel."""

    async def work(tx: Transaction) -> TaskRow | None:
        row = await tx.fetch_one(_TASK, {"task_id": task_id})
        return None if row is None else dict(zip(tasks.c.keys(), row, strict=True))

    return task_of(owned(caller, await platform.pool.read(work, budget_s=platform.limits.transaction_s)))


def owned(caller: Caller, row: TaskRow | None) -> TaskRow:
    """Give the row back if the caller may reach it. Raises ApiError NOT_FOUND or PERMISSION_DENIED."""
    if row is None:
        raise not_found("task")
    reach(
        caller,
        namespace_id=row["namespace_id"],
        application_id=row["application_id"],
        queue_id=row["queue_id"],
        what="task",
    )
    return row


def retry_policy_of(row: TaskRow) -> RetryPolicy:
    """The retry policy that a row holds."""
    return RetryPolicy(
        max_attempts=row["retry_max_attempts"],
        initial_delay_ms=row["retry_initial_delay_ms"],
        max_delay_ms=row["retry_max_delay_ms"],
        attempt_timeout_ms=row["attempt_timeout_ms"],
    )


def task_of(row: TaskRow) -> Task:
    """Show a row as a Task; what does not apply is left out."""
    state = TaskState(row["state"])
    return Task(
        task_id=row["task_id"],
        queue_id=row["queue_id"],
        handler=row["handler"],
        handler_version=row["handler_version"],
        payload_version=row["payload_version"],
        payload=Raw(row["payload"].encode()),
        recovery_safety=RecoverySafety(row["recovery_safety"]),
        task_timeout_ms=row["task_timeout_ms"],
        retry=retry_policy_of(row),
        state=state,
        version=str(row["version"]),
        attempt_count=row["attempt_count"],
        created_at=format_time(row["created_at"]),
        updated_at=format_time(row["updated_at"]),
        deadline_at=format_time(row["deadline_at"]),
        priority=row["priority"],
        effect_uncertain=bool(row["effect_uncertain"]),
        latest_start_at=_time(row["latest_start_at"]),
        available_at=format_time(row["available_at"]) if state is TaskState.WAITING else UNSET,
        concurrency_key=UNSET if row["concurrency_key"] is None else row["concurrency_key"],
        retry_of=UNSET if row["retry_of"] is None else row["retry_of"],
        result=UNSET if row["result"] is None else Raw(row["result"].encode()),
        error_code=UNSET if row["error_code"] is None else row["error_code"],
        cancel_requested_at=_time(row["cancel_requested_at"]),
        completed_at=_time(row["completed_at"]),
    )


def _time(moment: datetime | None) -> str | UnsetType:
    return UNSET if moment is None else format_time(moment)

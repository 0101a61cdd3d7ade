"""Lists of a queue's tasks by state, and what a task's past holds: its events and what was done to it by hand."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET, Raw
from sqlalchemy import bindparam, or_, select

from orbit.mysql.statement import compile_statement
from orbit.protocol.errors import InvalidValue
from orbit.protocol.history_v1 import AuditEntry, AuditPage, EventPage
from orbit.protocol.http_v1 import RecoverySafety, TaskPage, TaskState, TaskSummary
from orbit.protocol.values import format_time
from orbit.server.services import tasks as task_service
from orbit.server.tables import audit, events, tasks

if TYPE_CHECKING:
    from msgspec import UnsetType

    from orbit.mysql.statement import Statement
    from orbit.mysql.transaction import Transaction
    from orbit.server.parts import Platform
    from orbit.server.services.access import Caller

_T: Final = tasks.c
_SUMMARY: Final = (
    _T.task_id,
    _T.queue_id,
    _T.handler,
    _T.handler_version,
    _T.payload_version,
    _T.recovery_safety,
    _T.state,
    _T.version,
    _T.attempt_count,
    _T.retry_max_attempts,
    _T.created_at,
    _T.updated_at,
    _T.deadline_at,
    _T.priority,
    _T.effect_uncertain,
    _T.retry_of,
    _T.error_code,
    _T.cancel_requested_at,
    _T.completed_at,
)
LIST: Final = compile_statement(
    select(*_SUMMARY)
    .with_hint(tasks, "FORCE INDEX (ix_tasks_listed)", "mysql")
    .where(
        _T.queue_id == bindparam("queue_id"),
        _T.application_id == bindparam("application_id"),
        _T.state == bindparam("state"),
        _T.updated_at >= bindparam("at"),
        or_(_T.updated_at > bindparam("at"), _T.task_id > bindparam("task_id")),
    )
    .order_by(_T.updated_at, _T.task_id)
    .limit(bindparam("page"))
)
"""One page of the tasks of a queue and an application in a state, after a place in that order."""
_OWNER: Final = compile_statement(
    select(_T.namespace_id, _T.application_id, _T.queue_id).where(_T.task_id == bindparam("task_id"))
)
_EVENTS: Final = compile_statement(
    select(events.c.task_version, events.c.event)
    .where(events.c.task_id == bindparam("task_id"), events.c.task_version > bindparam("after"))
    .order_by(events.c.task_version)
    .limit(bindparam("page"))
)
_AUDIT: Final = compile_statement(
    select(audit.c.audit_no, audit.c.at, audit.c.actor, audit.c.action, audit.c.details, audit.c.evidence)
    .where(audit.c.object_id == bindparam("task_id"), audit.c.audit_no > bindparam("after"))
    .order_by(audit.c.audit_no)
    .limit(bindparam("page"))
)

_EPOCH: Final = datetime.fromtimestamp(0, UTC).replace(tzinfo=None)
_MICROSECOND: Final = timedelta(microseconds=1)
CURSOR: Final = "^[0-9a-f]{48}$"
"""A place in a list of tasks: microseconds since 1970 and a task's id, in hexadecimal digits."""


def parse_cursor(text: str) -> tuple[datetime, str]:
    """Read the `next` of a page of tasks: a time and a task's id. Raises InvalidValue."""
    if re.fullmatch(CURSOR.strip("^$"), text) is not None:
        try:
            return _EPOCH + int(text[:16], 16) * _MICROSECOND, text[16:]
        except OverflowError:
            pass
    raise InvalidValue("after", "must be the next of a page before")


def _cursor(at: datetime, task_id: str) -> str:
    return f"{(at - _EPOCH) // _MICROSECOND:016x}{task_id}"


async def list_tasks(
    platform: Platform, caller: Caller, state: TaskState, after: tuple[datetime, str] | None, limit: int
) -> TaskPage:
    """List the application's tasks in a state on the caller's queue, in the order in which they came to it.

    A place stays one when the task that it names moves on, so that a list may be worked off page by page. Safe to
    cancel.
    """
    at, task_id = (_EPOCH, "") if after is None else after

    async def work(tx: Transaction) -> list[tuple[Any, ...]]:
        return await tx.fetch(
            LIST,
            {
                "queue_id": caller.queue_id,
                "application_id": caller.application_id,
                "state": state.value,
                "at": at,
                "task_id": task_id,
                "page": limit + 1,
            },
        )

    found = await platform.pool.read(work, budget_s=platform.limits.transaction_s)
    rows = [dict(zip((column.name for column in _SUMMARY), row, strict=True)) for row in found]
    shown = rows[:limit]
    more = _cursor(shown[-1]["updated_at"], shown[-1]["task_id"]) if len(rows) > limit else UNSET
    return TaskPage(tasks=[_summary(row) for row in shown], next=more)


async def list_events(platform: Platform, caller: Caller, task_id: str, after: int, limit: int) -> EventPage:
    """List a task's events by version, from the one after `after` on, as consumers get them.

    One of them at most has a result, so a page is never much larger than an event may be. Raises ApiError NOT_FOUND or
    PERMISSION_DENIED. Safe to cancel.
    """
    rows = await _past(platform, caller, task_id, _EVENTS, after=after, limit=limit)
    shown = rows[:limit]
    return EventPage(
        events=[Raw(text.encode()) for _, text in shown], next=str(shown[-1][0]) if len(rows) > limit else UNSET
    )


async def list_audit(platform: Platform, caller: Caller, task_id: str, after: int, limit: int) -> AuditPage:
    """List what was done to a task by hand, oldest first, after the entry numbered `after`; as `list_events`."""
    rows = await _past(platform, caller, task_id, _AUDIT, after=after, limit=limit)
    shown = rows[:limit]
    entries = [
        AuditEntry(
            audit_no=str(audit_no),
            at=format_time(at),
            actor=actor,
            action=action,
            details=Raw(details.encode()),
            evidence=UNSET if evidence is None else Raw(evidence.encode()),
        )
        for audit_no, at, actor, action, details, evidence in shown
    ]
    return AuditPage(entries=entries, next=str(shown[-1][0]) if len(rows) > limit else UNSET)


async def _past(
    platform: Platform, caller: Caller, task_id: str, statement: Statement, *, after: int, limit: int
) -> list[tuple[Any, ...]]:
    async def work(tx: Transaction) -> list[tuple[Any, ...]]:
        owner = await tx.fetch_one(_OWNER, {"task_id": task_id})
        names = ("namespace_id", "application_id", "queue_id")
        task_service.owned(caller, None if owner is None else dict(zip(names, owner, strict=True)))
        return await tx.fetch(statement, {"task_id": task_id, "after": after, "page": limit + 1})

    return await platform.pool.read(work, budget_s=platform.limits.transaction_s)


def _summary(row: dict[str, Any]) -> TaskSummary:
    return TaskSummary(
        task_id=row["task_id"],
        queue_id=row["queue_id"],
        handler=row["handler"],
        handler_version=row["handler_version"],
        payload_version=row["payload_version"],
        recovery_safety=RecoverySafety(row["recovery_safety"]),
        state=TaskState(row["state"]),
        version=str(row["version"]),
        attempt_count=row["attempt_count"],
        max_attempts=row["retry_max_attempts"],
        created_at=format_time(row["created_at"]),
        updated_at=format_time(row["updated_at"]),
        deadline_at=format_time(row["deadline_at"]),
        priority=row["priority"],
        effect_uncertain=bool(row["effect_uncertain"]),
        retry_of=UNSET if row["retry_of"] is None else row["retry_of"],
        error_code=UNSET if row["error_code"] is None else row["error_code"],
        cancel_requested_at=_time(row["cancel_requested_at"]),
        completed_at=_time(row["completed_at"]),
    )


def _time(moment: datetime | None) -> str | UnsetType:
    return UNSET if moment is None else format_time(moment)

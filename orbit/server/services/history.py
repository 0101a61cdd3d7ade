"""A task's attempts as they were: outcomes, results, decisions, and the evidence that came without authority."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET, Raw
from sqlalchemy import ColumnClause, bindparam, func, literal_column, select

from orbit.mysql.statement import compile_statement
from orbit.protocol.attempt_v1 import AttemptState
from orbit.protocol.errors import InvalidValue
from orbit.protocol.history_v1 import AttemptPage, AttemptRecord, EvidenceRecord
from orbit.protocol.values import format_time
from orbit.server.services import tasks as task_service
from orbit.server.tables import attempts, evidence, tasks

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from msgspec import UnsetType

    from orbit.mysql.transaction import Transaction
    from orbit.server.parts import Platform
    from orbit.server.services.access import Caller

_A: Final = attempts.c
_E: Final = evidence.c
_ZERO: Final[ColumnClause[int]] = literal_column("0")

_OWNER: Final = compile_statement(
    select(tasks.c.namespace_id, tasks.c.application_id, tasks.c.queue_id).where(
        tasks.c.task_id == bindparam("task_id")
    )
)
_PLACE: Final = compile_statement(
    select(_A.epoch).where(_A.attempt_id == bindparam("attempt_id"), _A.task_id == bindparam("task_id"))
)
_SIZES: Final = compile_statement(
    select(
        _A.attempt_id,
        func.coalesce(func.octet_length(_A.result), _ZERO)
        + select(func.coalesce(func.sum(func.octet_length(_E.result)), _ZERO))
        .where(_E.attempt_id == _A.attempt_id)
        .scalar_subquery(),
    )
    .where(_A.task_id == bindparam("task_id"), _A.epoch > bindparam("after"))
    .order_by(_A.epoch)
    .limit(bindparam("page"))
)
_SHOWN: Final = (
    _A.attempt_id,
    _A.epoch,
    _A.state,
    _A.instance_id,
    _A.node,
    _A.leased_at,
    _A.lease_until,
    _A.started_at,
    _A.timeout_at,
    _A.ended_at,
    _A.outcome,
    _A.error_code,
    _A.result,
    _A.retryable,
    _A.decision,
    _A.delay_ms,
    _A.next_available_at,
    _A.concurrency_key,
    _A.concurrency_token,
)
_ATTEMPTS: Final = compile_statement(
    select(*_SHOWN).where(_A.attempt_id.in_(bindparam("attempt_ids", expanding=True))).order_by(_A.epoch)
)
_EVIDENCE: Final = compile_statement(
    select(_E.attempt_id, _E.message_id, _E.outcome, _E.received_at, _E.retryable, _E.error_code, _E.result)
    .where(_E.attempt_id.in_(bindparam("attempt_ids", expanding=True)))
    .order_by(_E.received_at, _E.message_id)
)


async def list_attempts(platform: Platform, caller: Caller, task_id: str, after: str | None, limit: int) -> AttemptPage:
    """List a task's attempts, oldest first, `limit` a page at most and `Limits.history_bytes` of results.

    `after` is the `next` of the page before. The caller's permission has been checked. Raises ApiError NOT_FOUND or
    PERMISSION_DENIED, InvalidValue for a cursor that names no attempt of the task. Safe to cancel.
    """

    async def work(tx: Transaction) -> AttemptPage:
        owner = await tx.fetch_one(_OWNER, {"task_id": task_id})
        names = ("namespace_id", "application_id", "queue_id")
        task_service.owned(caller, None if owner is None else dict(zip(names, owner, strict=True)))
        start = 0
        if after is not None:
            place = await tx.fetch_one(_PLACE, {"attempt_id": after, "task_id": task_id})
            if place is None:
                raise InvalidValue("after", "must be the next of a page of this task")
            start = place[0]
        sizes = await tx.fetch(_SIZES, {"task_id": task_id, "after": start, "page": limit + 1})
        chosen = _fitting(sizes[:limit], platform.limits.history_bytes)
        if not chosen:
            return AttemptPage(attempts=[])
        rows = await tx.fetch(_ATTEMPTS, {"attempt_ids": chosen})
        reports = await tx.fetch(_EVIDENCE, {"attempt_ids": chosen})
        records = [_record(row, reports) for row in rows]
        return AttemptPage(attempts=records, next=chosen[-1] if len(chosen) < len(sizes) else UNSET)

    return await platform.pool.read(work, budget_s=platform.limits.transaction_s)


def _fitting(sizes: Iterable[tuple[Any, ...]], most: int) -> list[str]:
    """As many attempts as fit into a page by the size of what they hold, and always one."""
    chosen: list[str] = []
    total = 0
    for attempt_id, size in sizes:
        total += int(size)
        if chosen and total > most:
            break
        chosen.append(attempt_id)
    return chosen


def _record(row: tuple[Any, ...], reports: Iterable[tuple[Any, ...]]) -> AttemptRecord:
    one = dict(zip((column.name for column in _SHOWN), row, strict=True))
    ended = one["state"] == AttemptState.ENDED
    return AttemptRecord(
        attempt_id=one["attempt_id"],
        epoch=str(one["epoch"]),
        state=one["state"],
        instance_id=one["instance_id"],
        node=one["node"],
        leased_at=format_time(one["leased_at"]),
        # An attempt that has ended has no lease, whatever was left of it.
        lease_until=UNSET if ended else format_time(one["lease_until"]),
        started_at=_time(one["started_at"]),
        timeout_at=_time(one["timeout_at"]),
        ended_at=_time(one["ended_at"]),
        outcome=_given(one["outcome"]),
        error_code=_given(one["error_code"]),
        result=_document(one["result"]),
        retryable=bool(one["retryable"]),
        decision=_given(one["decision"]),
        delay_ms=_given(one["delay_ms"]),
        next_available_at=_time(one["next_available_at"]),
        concurrency_key=_given(one["concurrency_key"]),
        concurrency_token=UNSET if one["concurrency_token"] is None else str(one["concurrency_token"]),
        evidence=[
            EvidenceRecord(
                message_id=message_id,
                outcome=outcome,
                received_at=format_time(received_at),
                retryable=bool(retryable),
                error_code=_given(error_code),
                result=_document(result),
            )
            for attempt_id, message_id, outcome, received_at, retryable, error_code, result in reports
            if attempt_id == one["attempt_id"]
        ],
    )


def _given(value: Any) -> Any:
    return UNSET if value is None else value


def _document(text: str | None) -> Raw | UnsetType:
    return UNSET if text is None else Raw(text.encode())


def _time(moment: datetime | None) -> str | UnsetType:
    return UNSET if moment is None else format_time(moment)

"""Queues: shown, paused and resumed, limited by an operator. What an operator does is audited in the same transaction.

A pause stops claims and nothing else: what is leased may start and finish. Limits count from their COMMIT on; attempts
beyond a lowered one go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from msgspec import UNSET, UnsetType
from sqlalchemy import bindparam, select, update

from orbit.mysql.statement import Statement, compile_statement
from orbit.protocol.errors import InvalidValue
from orbit.protocol.http_v1 import Queue, QueueLimits, QueuePage
from orbit.protocol.values import format_time
from orbit.server.services import audit
from orbit.server.services.access import check_queue, not_found
from orbit.server.tables import namespaces, queues
from orbit.server.wake import queue_key

if TYPE_CHECKING:
    from orbit.mysql.transaction import Transaction
    from orbit.server.parts import Platform
    from orbit.server.services.access import Caller

_Q: Final = queues.c
_QUEUE: Final = compile_statement(
    select(
        _Q.queue_id,
        namespaces.c.name.label("namespace"),
        _Q.environment,
        _Q.name,
        _Q.created_at,
        _Q.paused,
        _Q.concurrency_limit,
        _Q.start_limit,
        _Q.start_window_ms,
    )
    .join_from(queues, namespaces, _Q.namespace_id == namespaces.c.namespace_id)
    .where(_Q.queue_id == bindparam("queue_id"))
)
_LOCK: Final = compile_statement(select(_Q.queue_id).where(_Q.queue_id == bindparam("queue_id")).with_for_update())
_SET_PAUSED: Final = compile_statement(
    update(queues).where(_Q.queue_id == bindparam("the_queue_id")).values(paused=bindparam("paused"))
)
_SET_LIMITS: Final = compile_statement(
    update(queues)
    .where(_Q.queue_id == bindparam("the_queue_id"))
    .values(
        concurrency_limit=bindparam("concurrency_limit"),
        start_limit=bindparam("start_limit"),
        start_window_ms=bindparam("start_window_ms"),
    )
)


async def list_queues(platform: Platform, caller: Caller) -> QueuePage:
    """List the caller's queues. Safe to cancel."""

    async def work(tx: Transaction) -> Queue:
        return await _read(tx, caller.queue_id)

    return QueuePage(queues=[await platform.pool.read(work, budget_s=platform.limits.transaction_s)])


@dataclass(frozen=True, slots=True)
class _Act:
    """What an operator does to a queue, by its name in the audit."""

    name: str
    statement: Statement
    values: Mapping[str, int | None]


async def set_paused(platform: Platform, caller: Caller, queue_id: str, *, paused: bool) -> Queue:
    """Pause or resume; either may be repeated. The caller's permission has been checked.

    Raises ApiError NOT_FOUND or PERMISSION_DENIED and the errors of `LanePool.run`. Cancelling leaves the outcome to
    the next call.
    """
    act = _Act("queue.pause" if paused else "queue.resume", _SET_PAUSED, {"paused": paused})
    return await _perform(platform, caller, queue_id, act)


async def set_limits(platform: Platform, caller: Caller, queue_id: str, limits: QueueLimits) -> Queue:
    """Replace all limits of a queue; as `set_paused`. Raises InvalidValue for half of a start limit."""
    if (limits.start_limit is UNSET) != (limits.start_window_ms is UNSET):
        raise InvalidValue("start_window_ms", "goes with start_limit, and neither without the other")
    values = {
        "concurrency_limit": _number(limits.concurrency_limit),
        "start_limit": _number(limits.start_limit),
        "start_window_ms": _number(limits.start_window_ms),
    }
    return await _perform(platform, caller, queue_id, _Act("queue.limits", _SET_LIMITS, values))


async def _perform(platform: Platform, caller: Caller, queue_id: str, act: _Act) -> Queue:
    await check_queue(platform.pool, caller, queue_id, platform.limits)

    async def work(tx: Transaction) -> Queue:
        # Waits for the claims that are under way; those that follow see the change.
        await tx.fetch_one(_LOCK, {"queue_id": queue_id})
        before = await _read(tx, queue_id)
        await tx.execute(act.statement, {"the_queue_id": queue_id, **act.values})
        after = await _read(tx, queue_id)
        if after != before:
            await audit.note(tx, caller, act.name, queue_id, dict(act.values))
        return after

    queue = await platform.pool.run_again(work, budget_s=platform.limits.transaction_s)
    platform.wake.notify(queue_key(queue_id))
    return queue


async def _read(tx: Transaction, queue_id: str) -> Queue:
    row = await tx.fetch_one(_QUEUE, {"queue_id": queue_id})
    if row is None:
        raise not_found("queue")
    name, namespace, environment, queue, created_at, paused, *limits = row
    concurrency_limit, start_limit, start_window_ms = (UNSET if one is None else one for one in limits)
    return Queue(
        queue_id=name,
        namespace=namespace,
        environment=environment,
        name=queue,
        created_at=format_time(created_at),
        paused=bool(paused),
        concurrency_limit=concurrency_limit,
        start_limit=start_limit,
        start_window_ms=start_window_ms,
    )


def _number(value: int | UnsetType) -> int | None:
    return None if isinstance(value, UnsetType) else value

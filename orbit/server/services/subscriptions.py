"""Subscriptions: standing orders for a queue's events.

A subscription gets the events that commit after it; nothing is filled in from before. A paused one keeps collecting
deliveries and counts against the namespace's limit.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import bindparam, func, insert, select, update

from orbit.mysql.statement import compile_statement
from orbit.protocol import strict_json
from orbit.protocol.errors import ApiError, ErrorCode, InvalidValue
from orbit.protocol.http_v1 import CreateSubscription, EventType, Subscription, SubscriptionPage
from orbit.protocol.values import format_time, new_id
from orbit.server.services.access import check_queue, not_found, reach
from orbit.server.services.operations import Operation, once
from orbit.server.tables import namespaces, queues, subscriptions
from orbit.server.wake import subscription_key

if TYPE_CHECKING:
    from datetime import datetime

    from orbit.mysql.transaction import Transaction
    from orbit.server.parts import Platform
    from orbit.server.services.access import Caller

_COLUMNS: Final = (
    subscriptions.c.subscription_id,
    subscriptions.c.namespace_id,
    subscriptions.c.application_id,
    subscriptions.c.queue_id,
    subscriptions.c.event_types,
    subscriptions.c.enabled,
    subscriptions.c.window_size,
    subscriptions.c.attempt_budget,
    subscriptions.c.created_at,
    subscriptions.c.updated_at,
)
_ONE: Final = select(*_COLUMNS).where(subscriptions.c.subscription_id == bindparam("subscription_id"))
_READ: Final = compile_statement(_ONE)
_LOCK: Final = compile_statement(_ONE.with_for_update())
_LIST: Final = compile_statement(
    select(*_COLUMNS)
    .where(
        subscriptions.c.namespace_id == bindparam("namespace_id"),
        subscriptions.c.application_id == bindparam("application_id"),
        subscriptions.c.queue_id == bindparam("queue_id"),
    )
    .order_by(subscriptions.c.created_at, subscriptions.c.subscription_id)
)
_LOCK_NAMESPACE: Final = compile_statement(
    select(namespaces.c.namespace_id).where(namespaces.c.namespace_id == bindparam("namespace_id")).with_for_update()
)
_LOCK_QUEUE: Final = compile_statement(
    select(func.utc_timestamp(6))
    .select_from(queues)
    .where(queues.c.queue_id == bindparam("queue_id"))
    .with_for_update()
)
_COUNT: Final = compile_statement(
    select(func.count()).select_from(subscriptions).where(subscriptions.c.namespace_id == bindparam("namespace_id"))
)
_INSERT: Final = compile_statement(insert(subscriptions))
_SET_ENABLED: Final = compile_statement(
    update(subscriptions)
    .where(subscriptions.c.subscription_id == bindparam("the_subscription_id"))
    .values(enabled=bindparam("enabled"), updated_at=func.utc_timestamp(6))
)


@dataclass(frozen=True, slots=True)
class SubscriptionRow:
    """A row of `subscriptions`; times without a zone in UTC."""

    subscription_id: str
    namespace_id: str
    application_id: str
    queue_id: str
    event_types: tuple[EventType, ...]
    enabled: bool
    window_size: int
    attempt_budget: int
    created_at: datetime
    updated_at: datetime


async def create(
    platform: Platform, caller: Caller, operation_key: str, request: CreateSubscription
) -> tuple[Subscription, bool]:
    """Create a subscription once for its key; tells whether this call did. The caller's permission has been checked.

    Raises InvalidValue, ApiError (NOT_FOUND, PERMISSION_DENIED, IDEMPOTENCY_CONFLICT, RESOURCE_EXHAUSTED) and what
    `operations.once` raises; cancelling leaves the outcome to the next call with the same key.
    """
    if len(set(request.event_types)) != len(request.event_types):
        raise InvalidValue("event_types", "must name each type once")
    await check_queue(platform.pool, caller, request.queue_id, platform.limits)
    types = [one for one in EventType if one in request.event_types]
    subscription_id = new_id()
    operation = Operation(
        caller=caller,
        kind="subscriptions.create",
        key=operation_key,
        content_sha256=_digest(request, types),
        resource_id=subscription_id,
    )

    async def work(tx: Transaction) -> None:
        # Creations in one namespace go one by one, so that two of them cannot both be the last that fits.
        await tx.fetch_one(_LOCK_NAMESPACE, {"namespace_id": caller.namespace_id})
        # Waits for the ledgers that are open on this queue and holds back new ones: see `ledger`.
        locked = await tx.fetch_one(_LOCK_QUEUE, {"queue_id": request.queue_id})
        counted = await tx.fetch_one(_COUNT, {"namespace_id": caller.namespace_id})
        assert locked is not None
        assert counted is not None
        limit = platform.limits.subscriptions_per_namespace
        if counted[0] >= limit:
            raise ApiError(ErrorCode.RESOURCE_EXHAUSTED, f"the namespace has its {limit} subscriptions already")
        await tx.execute(
            _INSERT,
            {
                "subscription_id": subscription_id,
                "namespace_id": caller.namespace_id,
                "application_id": caller.application_id,
                "queue_id": request.queue_id,
                "event_types": " ".join(types),
                "enabled": True,
                "window_size": request.window,
                "attempt_budget": request.attempt_budget,
                "created_at": locked[0],
                "updated_at": locked[0],
            },
        )

    outcome = await once(platform, operation, work)
    return await get(platform, caller, outcome.resource_id), outcome.created


async def get(platform: Platform, caller: Caller, subscription_id: str) -> Subscription:
    """Read one subscription. Raises ApiError NOT_FOUND or PERMISSION_DENIED. Safe to cancel."""

    async def work(tx: Transaction) -> SubscriptionRow:
        return await load(tx, caller, subscription_id)

    return _shown(await platform.pool.read(work, budget_s=platform.limits.transaction_s))


async def list_subscriptions(platform: Platform, caller: Caller) -> SubscriptionPage:
    """List the caller's subscriptions on its queue, oldest first; the namespace's limit bounds them. Safe to cancel."""

    async def work(tx: Transaction) -> list[tuple[Any, ...]]:
        return await tx.fetch(
            _LIST,
            {
                "namespace_id": caller.namespace_id,
                "application_id": caller.application_id,
                "queue_id": caller.queue_id,
            },
        )

    rows = await platform.pool.read(work, budget_s=platform.limits.transaction_s)
    return SubscriptionPage(subscriptions=[_shown(_row(row)) for row in rows])


async def set_enabled(platform: Platform, caller: Caller, subscription_id: str, *, enabled: bool) -> Subscription:
    """Pause or resume; either may be repeated. The caller's permission has been checked.

    Raises ApiError NOT_FOUND or PERMISSION_DENIED and the errors of `LanePool.run`. Cancelling leaves the outcome to
    the next call.
    """

    async def work(tx: Transaction) -> SubscriptionRow:
        row = await load(tx, caller, subscription_id, lock=True)
        if row.enabled is enabled:
            return row
        await tx.execute(_SET_ENABLED, {"the_subscription_id": subscription_id, "enabled": enabled})
        return await load(tx, caller, subscription_id)

    row = await platform.pool.run_again(work, budget_s=platform.limits.transaction_s)
    platform.wake.notify(subscription_key(subscription_id))
    return _shown(row)


async def load(tx: Transaction, caller: Caller, subscription_id: str, *, lock: bool = False) -> SubscriptionRow:
    """Read a subscription that the caller may reach, with `lock` FOR UPDATE. Raises ApiError otherwise."""
    row = await tx.fetch_one(_LOCK if lock else _READ, {"subscription_id": subscription_id})
    if row is None:
        raise not_found("subscription")
    found = _row(row)
    reach(
        caller,
        namespace_id=found.namespace_id,
        application_id=found.application_id,
        queue_id=found.queue_id,
        what="subscription",
    )
    return found


def _row(row: tuple[Any, ...]) -> SubscriptionRow:
    found = SubscriptionRow(*row)
    return replace(found, event_types=tuple(EventType(name) for name in row[4].split(" ")), enabled=bool(found.enabled))


def _shown(row: SubscriptionRow) -> Subscription:
    return Subscription(
        subscription_id=row.subscription_id,
        queue_id=row.queue_id,
        event_types=list(row.event_types),
        enabled=row.enabled,
        window=row.window_size,
        attempt_budget=row.attempt_budget,
        created_at=format_time(row.created_at),
        updated_at=format_time(row.updated_at),
    )


def _digest(request: CreateSubscription, types: list[EventType]) -> str:
    """SHA-256 of the content with defaults filled in; the order of the types does not matter."""
    content: strict_json.Value = {
        "queue_id": request.queue_id,
        "event_types": [one.value for one in types],
        "window": request.window,
        "attempt_budget": request.attempt_budget,
    }
    return hashlib.sha256(strict_json.canonical(content)).hexdigest()

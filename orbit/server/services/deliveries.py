"""Deliveries of events: leased to consumers, acknowledged, released, looked at, granted more attempts.

Each function is one transaction and may be cancelled. Those for consumers (`claim`, `acknowledge`, `release`) may be
repeated after any failure: a claim whose COMMIT is not confirmed costs at most one attempt of what it leased, and a
proof that is reported again gets the answer it got or would have got. Database errors pass on as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET, Raw

from orbit.protocol import http_v1, strict_json
from orbit.protocol.errors import InvalidValue
from orbit.protocol.events_v1 import Ack, Delivery, Proof, Release, Verdicts
from orbit.protocol.http_v1 import DeliveryState
from orbit.protocol.values import Secret, format_time
from orbit.server import delivery_statements as sql
from orbit.server.decide import delivery as decide
from orbit.server.decide.delivery import Facts, Ruling
from orbit.server.services.access import Caller, not_found, reach
from orbit.server.services.operations import Operation, once
from orbit.server.services.subscriptions import load
from orbit.server.wake import subscription_key

if TYPE_CHECKING:
    from orbit.mysql.statement import Statement
    from orbit.mysql.transaction import Transaction
    from orbit.server.parts import Platform

_MICROSECONDS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Opened:
    """A subscription that its owner may consume, and the database's clock."""

    queue_id: str
    now: datetime


async def open_subscription(platform: Platform, caller: Caller, subscription_id: str) -> Opened:
    """Check that the caller may consume a subscription. Raises ApiError NOT_FOUND or PERMISSION_DENIED otherwise."""

    async def work(tx: Transaction) -> Opened:
        subscription = await load(tx, caller, subscription_id)
        ((now,),) = await tx.fetch(sql.CLOCK)
        return Opened(subscription.queue_id, now.replace(tzinfo=UTC))

    return await platform.pool.read(work, budget_s=platform.limits.transaction_s)


async def claim(platform: Platform, subscription_id: str, room: int) -> list[Delivery]:
    """Lease the oldest deliverable deliveries of a subscription, at most `room` and `Limits.delivery_batch`.

    Empty when there are none, the window is full or the subscription is paused.
    """
    limits = platform.limits
    limit = min(room, limits.delivery_batch)
    if limit < 1:
        return []

    async def work(tx: Transaction) -> list[Delivery]:
        subscription = await tx.fetch_one(sql.LOCK_SUBSCRIPTION, {"subscription_id": subscription_id})
        if subscription is None or not subscription[0]:
            return []
        rows = await tx.fetch(sql.CLAIMABLE, {"subscription_id": subscription_id, "room": limit})
        # The column's type is that of all the union's parts together: a decimal.
        found = {kind: [int(number) for one, number in rows if one == kind] for kind in sql.KINDS}
        numbers = decide.claimable(
            found[sql.TRIED],
            found[sql.UNTRIED],
            window=subscription[1],
            in_window=found[sql.IN_WINDOW][0],
            room=limit,
        )
        return await _lease(tx, numbers, limits.delivery_lease_s) if numbers else []

    return await platform.pool.run_again(work, budget_s=limits.transaction_s)


async def _lease(tx: Transaction, numbers: Sequence[int], lease_s: float) -> list[Delivery]:
    secrets = {number: Secret.new() for number in numbers}
    await tx.execute(
        sql.LEASE,
        {
            "delivery_nos": list(numbers),
            "places": ",".join(str(number) for number in numbers),
            "digests": "".join(secrets[number].digest() for number in numbers),
            "lease_us": int(lease_s * _MICROSECONDS),
        },
    )
    return [
        Delivery(
            proof=Proof(delivery_id=delivery_id, epoch=epoch, lease_secret=secrets[number]),
            attempt=attempts,
            attempt_budget=budget,
            lease_until=lease_until.replace(tzinfo=UTC),
            server_time=now.replace(tzinfo=UTC),
            event=Raw(event.encode()),
        )
        for number, delivery_id, epoch, attempts, budget, lease_until, now, event in await tx.fetch(
            sql.LEASED, {"delivery_nos": list(numbers)}
        )
    ]


async def acknowledge(platform: Platform, subscription_id: str, ack: Ack) -> Verdicts:
    """End the deliveries whose work is committed; one verdict for each proof, in order."""

    def judge(rows: dict[str, Facts]) -> Ruling:
        return decide.acknowledge(ack.deliveries, rows, subscription_id=subscription_id)

    return await _settle(platform, subscription_id, ack.deliveries, judge, sql.ACKNOWLEDGE)


async def release(platform: Platform, subscription_id: str, release: Release) -> Verdicts:
    """Take back deliveries that the consumer does not go on with; one verdict for each proof, in order.

    `started` false: not begun, so the attempt is given back and the delivery is PENDING at once. `started` true: begun
    and not ended, so the attempt stays spent and the delivery keeps its lease and comes again when that is over; only
    the consumer's slot is free, which is the connection's to count.
    """

    def judge(rows: dict[str, Facts]) -> Ruling:
        return decide.release(release.deliveries, rows, subscription_id=subscription_id)

    proofs = [one.proof for one in release.deliveries]
    return await _settle(platform, subscription_id, proofs, judge, sql.GIVE_BACK)


async def _settle(
    platform: Platform,
    subscription_id: str,
    proofs: Sequence[Proof],
    judge: Callable[[dict[str, Facts]], Ruling],
    change: Statement,
) -> Verdicts:
    """Lock what the proofs name, judge them all, change what the ruling says."""
    names = sorted({proof.delivery_id for proof in proofs})

    async def work(tx: Transaction) -> Ruling:
        numbers = sorted(number for _, number in await tx.fetch(sql.FIND, {"delivery_ids": names}))
        rows = await tx.fetch(sql.LOCK, {"delivery_nos": numbers}) if numbers else []
        deliveries = dict(map(sql.facts_of, rows))
        ruling = judge(deliveries)
        if ruling.changed:
            now = next(iter(deliveries.values())).now
            await tx.execute(change, {"delivery_nos": list(ruling.changed), "now": now})
        return ruling

    ruling = await platform.pool.run_again(work, budget_s=platform.limits.transaction_s)
    if ruling.changed:
        # A place in the window is free, or a delivery is: for whichever consumer looks first.
        platform.wake.notify(subscription_key(subscription_id))
    return Verdicts(verdicts=ruling.verdicts)


async def grant(
    platform: Platform, caller: Caller, operation_key: str, delivery_id: str, request: http_v1.GrantAttempts
) -> http_v1.Delivery:
    """Add attempts to a delivery's budget once for the key; gives the delivery as it is now.

    The caller's permission has been checked. Raises ApiError (NOT_FOUND, PERMISSION_DENIED, STATE_CONFLICT once it is
    acknowledged, IDEMPOTENCY_CONFLICT) and what `operations.once` raises; cancelling leaves the outcome to the next
    call with the same key.
    """
    operation = Operation(
        caller=caller,
        kind="deliveries.grant",
        key=operation_key,
        content_sha256=_digest(delivery_id, request),
        resource_id=delivery_id,
    )

    async def look(tx: Transaction) -> tuple[Any, ...]:
        row = await tx.fetch_one(sql.SHOW, {"delivery_id": delivery_id})
        if row is None:
            raise not_found("delivery")
        namespace_id, application_id, queue_id, *shown = row
        reach(caller, namespace_id=namespace_id, application_id=application_id, queue_id=queue_id, what="delivery")
        return tuple(shown)

    async def work(tx: Transaction) -> None:
        number = (await look(tx))[0]
        (row,) = await tx.fetch(sql.LOCK, {"delivery_nos": [number]})
        after = decide.grant(sql.facts_of(row)[1], request.attempts)
        await tx.execute(sql.GRANT, {"number": number, "new_state": after.state.value, "budget": after.attempt_budget})

    await once(platform, operation, work)
    delivery = _shown(await platform.pool.read(look, budget_s=platform.limits.transaction_s))
    platform.wake.notify(subscription_key(delivery.subscription_id))
    return delivery


async def list_page(
    platform: Platform, caller: Caller, subscription_id: str, after: str | None, limit: int
) -> http_v1.DeliveryPage:
    """List a subscription's deliveries, oldest first, `limit` a page; `after` is the `next` of the page before.

    The caller's permission has been checked. Raises ApiError NOT_FOUND or PERMISSION_DENIED, InvalidValue for a cursor
    that names no delivery of the subscription. Safe to cancel.
    """

    async def work(tx: Transaction) -> list[tuple[Any, ...]]:
        await load(tx, caller, subscription_id)
        start = 0
        if after is not None:
            place = {"delivery_id": after, "subscription_id": subscription_id}
            found = await tx.fetch_one(sql.PLACE, place)
            if found is None:
                raise InvalidValue("after", "must be the next of a page of this subscription")
            start = found[0]
        return await tx.fetch(sql.PAGE, {"subscription_id": subscription_id, "after": start, "page": limit + 1})

    rows = await platform.pool.read(work, budget_s=platform.limits.transaction_s)
    deliveries = [_shown(row) for row in rows[:limit]]
    return http_v1.DeliveryPage(deliveries=deliveries, next=deliveries[-1].delivery_id if len(rows) > limit else UNSET)


def _shown(row: tuple[Any, ...]) -> http_v1.Delivery:
    _, delivery_id, subscription_id, event_id, state, attempts, budget, epoch, lease_until, acked_at, *times = row
    created_at, updated_at = times
    return http_v1.Delivery(
        delivery_id=delivery_id,
        subscription_id=subscription_id,
        event_id=event_id,
        state=DeliveryState(state),
        attempts=attempts,
        attempt_budget=budget,
        epoch=str(epoch) if epoch else UNSET,
        # Where a lease ran out its end stays in the row; to a reader there is no lease.
        lease_until=format_time(lease_until) if state == DeliveryState.LEASED else UNSET,
        acked_at=format_time(acked_at) if acked_at else UNSET,
        created_at=format_time(created_at),
        updated_at=format_time(updated_at),
    )


def _digest(delivery_id: str, request: http_v1.GrantAttempts) -> str:
    content: strict_json.Value = {"delivery_id": delivery_id, "attempts": request.attempts}
    return hashlib.sha256(strict_json.canonical(content)).hexdigest()

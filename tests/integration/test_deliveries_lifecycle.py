"""Deliveries on a real database: leased, acknowledged, released, swept, granted. Design section 5, seed section 5."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from orbit.mysql.statement import Statement
from orbit.protocol.errors import ApiError, ErrorCode
from orbit.protocol.http_v1 import GrantAttempts
from orbit.protocol.limits import Limits
from orbit.protocol.values import Secret, new_id
from orbit.server.services import deliveries
from orbit.server.sweep import Sweeper
from orbit.server.wake import subscription_key
from tests.support.deliveries import BUDGET_S, Row, Shop, event_text, fresh_platform, open_node, proofs, words

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from orbit.mysql.dsn import DSN
    from orbit.mysql.transaction import Transaction
    from orbit.protocol.events_v1 import Verdict
    from orbit.sandbox import MySQLServer
    from orbit.server.parts import Platform


@pytest.fixture(scope="module")
def quiet_dsn(mysql: MySQLServer) -> Iterator[DSN]:
    """A platform database without a running sweeper."""
    with fresh_platform(mysql) as dsn:
        yield dsn


@pytest.fixture
async def platform(quiet_dsn: DSN) -> AsyncIterator[Platform]:
    platform = open_node(quiet_dsn)
    yield platform
    await platform.pool.close()


@pytest.fixture
async def shop(platform: Platform, quiet_dsn: DSN) -> Shop:
    return await Shop.open(platform, quiet_dsn)


async def states(shop: Shop, subscription: str) -> list[tuple[str, int, int]]:
    """State, attempts and epoch of each delivery, oldest first."""
    return [(row.state, row.attempts, row.epoch) for row in await shop.rows(subscription)]


async def test_a_claim_leases_the_oldest_with_their_frozen_events(shop: Shop) -> None:
    subscription = await shop.subscribe()
    tasks = await shop.submit(3)

    leased = await shop.claim(subscription, room=2)

    events = [json.loads(event_text(one)) for one in leased]
    assert [event["task_id"] for event in events] == tasks[:2]
    assert {event["event_type"] for event in events} == {"task.submitted"}
    stored = await shop.sql(f"SELECT event FROM events WHERE queue_id = '{shop.caller.queue_id}' ORDER BY occurred_at")
    assert [event_text(one) for one in leased] == [text for (text,) in stored[:2]]
    assert [(one.attempt, one.attempt_budget, one.proof.epoch) for one in leased] == [(1, 10, 1), (1, 10, 1)]
    assert await states(shop, subscription) == [("LEASED", 1, 1), ("LEASED", 1, 1), ("PENDING", 0, 0)]


async def test_a_lease_lasts_thirty_seconds_by_the_databases_clock_and_its_secret_is_not_kept(shop: Shop) -> None:
    subscription = await shop.subscribe()
    await shop.submit(2)

    one, two = await shop.claim(subscription)

    assert timedelta(seconds=29) < one.lease_until - one.server_time <= timedelta(seconds=30)
    kept = await shop.sql(
        "SELECT lease_secret_sha256, TIMESTAMPDIFF(MICROSECOND, updated_at, lease_until) FROM deliveries "
        f"WHERE subscription_id = '{subscription}' ORDER BY delivery_no"
    )
    assert kept == [
        (one.proof.lease_secret.digest(), 30_000_000),
        (two.proof.lease_secret.digest(), 30_000_000),
    ]
    assert one.proof.lease_secret != two.proof.lease_secret


async def test_a_claim_is_bounded_by_the_batch(quiet_dsn: DSN) -> None:
    platform = open_node(quiet_dsn, limits=Limits(delivery_batch=3))
    try:
        shop = await Shop.open(platform, quiet_dsn)
        subscription = await shop.subscribe()
        await shop.submit(5)

        assert len(await shop.claim(subscription, room=100)) == 3
        assert len(await shop.claim(subscription, room=100)) == 2
        assert await shop.claim(subscription, room=0) == []
    finally:
        await platform.pool.close()


async def test_an_acknowledged_delivery_is_over_and_its_receipt_stays_the_same(shop: Shop) -> None:
    subscription = await shop.subscribe()
    await shop.submit()
    (leased,) = await shop.claim(subscription)

    first = await shop.ack(subscription, leased.proof)
    again = await shop.ack(subscription, leased.proof)

    assert words(first) == ["ACKED"]
    assert again == first
    ((acked_at,),) = await shop.sql(f"SELECT acked_at FROM deliveries WHERE subscription_id = '{subscription}'")
    assert first[0].acked_at is not None
    assert first[0].acked_at.replace(tzinfo=None) == acked_at
    assert await states(shop, subscription) == [("ACKED", 1, 1)]
    assert await shop.claim(subscription) == []


async def test_window_one_and_budget_two_end_in_expired_the_next_is_withheld_until_a_grant(shop: Shop) -> None:
    subscription = await shop.subscribe(window=1, budget=2)
    await shop.submit(2)
    sweeper = Sweeper(shop.platform)

    for attempt in (1, 2):
        (leased,) = await shop.claim(subscription)
        assert (leased.attempt, leased.attempt_budget, leased.proof.epoch) == (attempt, 2, attempt)
        # The handler fails: no ACK, the lease runs out.
        await shop.release(subscription, leased.proof, started=True)
        assert await shop.claim(subscription) == []
        await shop.end_leases(subscription)
        assert await sweeper.sweep_once() == 1

    assert await states(shop, subscription) == [("EXPIRED", 2, 2), ("PENDING", 0, 0)]
    assert await shop.claim(subscription) == []

    expired = (await shop.rows(subscription))[0].delivery_id
    granted = await deliveries.grant(shop.platform, shop.caller, new_id(), expired, GrantAttempts(attempts=1))
    assert (granted.state, granted.attempts, granted.attempt_budget) == ("PENDING", 2, 3)

    (leased,) = await shop.claim(subscription)
    assert (leased.proof.delivery_id, leased.attempt, leased.proof.epoch) == (expired, 3, 3)
    assert words(await shop.ack(subscription, leased.proof)) == ["ACKED"]
    (following,) = await shop.claim(subscription)
    assert following.proof.delivery_id != expired
    assert await states(shop, subscription) == [("ACKED", 3, 3), ("LEASED", 1, 1)]


async def test_a_delivery_that_was_tried_keeps_its_place_in_the_window(shop: Shop) -> None:
    subscription = await shop.subscribe(window=2)
    await shop.submit(4)
    first = await shop.claim(subscription)
    assert len(first) == 2
    await shop.end_leases(subscription)
    await Sweeper(shop.platform).sweep_once()
    assert [row.in_window for row in await shop.rows(subscription)] == [1, 1, 0, 0]

    again = await shop.claim(subscription)

    assert [one.proof.delivery_id for one in again] == [one.proof.delivery_id for one in first]
    assert [(one.attempt, one.proof.epoch) for one in again] == [(2, 2), (2, 2)]


async def test_a_place_in_the_window_that_an_ack_frees_goes_to_the_next(shop: Shop) -> None:
    subscription = await shop.subscribe(window=2)
    await shop.submit(3)
    one, _ = await shop.claim(subscription)
    assert await shop.claim(subscription) == []

    await shop.ack(subscription, one.proof)

    assert len(await shop.claim(subscription)) == 1


async def test_a_late_ack_of_the_newest_epoch_counts_before_and_after_the_sweep(shop: Shop) -> None:
    subscription = await shop.subscribe()
    await shop.submit(2)
    before, after = await shop.claim(subscription)
    await shop.end_leases(subscription)

    assert words(await shop.ack(subscription, before.proof)) == ["ACKED"]
    await Sweeper(shop.platform).sweep_once()
    assert await states(shop, subscription) == [("ACKED", 1, 1), ("PENDING", 1, 1)]
    assert words(await shop.ack(subscription, after.proof)) == ["ACKED"]

    assert await states(shop, subscription) == [("ACKED", 1, 1), ("ACKED", 1, 1)]
    assert await shop.claim(subscription) == []


async def test_a_late_ack_counts_for_an_expired_delivery_and_frees_its_place(shop: Shop) -> None:
    subscription = await shop.subscribe(window=1, budget=1)
    await shop.submit(2)
    (leased,) = await shop.claim(subscription)
    await shop.end_leases(subscription)
    await Sweeper(shop.platform).sweep_once()
    assert (await states(shop, subscription))[0] == ("EXPIRED", 1, 1)

    assert words(await shop.ack(subscription, leased.proof)) == ["ACKED"]

    assert len(await shop.claim(subscription)) == 1


async def test_an_ack_of_an_older_epoch_does_not_count(shop: Shop) -> None:
    subscription = await shop.subscribe()
    await shop.submit()
    (old,) = await shop.claim(subscription)
    await shop.end_leases(subscription)
    await Sweeper(shop.platform).sweep_once()
    (new,) = await shop.claim(subscription)

    assert words(await shop.ack(subscription, old.proof)) == ["REFUSED STALE_EPOCH"]
    assert await states(shop, subscription) == [("LEASED", 2, 2)]
    assert words(await shop.ack(subscription, new.proof)) == ["ACKED"]
    assert words(await shop.ack(subscription, old.proof)) == ["REFUSED STALE_EPOCH"]


async def test_an_ack_waits_for_whoever_is_changing_the_delivery_and_judges_what_is_true_then(shop: Shop) -> None:
    subscription = await shop.subscribe()
    await shop.submit()
    (old,) = proofs(await shop.claim(subscription))

    async def give_to_somebody_else(tx: Transaction) -> asyncio.Task[list[Verdict]]:
        await tx.execute(
            Statement(
                "UPDATE deliveries SET epoch = 2, attempts = 2, lease_secret_sha256 = REPEAT('0', 64)"
                f" WHERE delivery_id = '{old.delivery_id}'"
            )
        )
        acking = asyncio.create_task(shop.ack(subscription, old))
        # Not for the outcome: it gives an ACK that does not wait the time to go wrong.
        await asyncio.wait((acking,), timeout=0.2)
        return acking

    acking = await shop.platform.pool.run(give_to_somebody_else, budget_s=BUDGET_S)

    assert words(await acking) == ["REFUSED STALE_EPOCH"]
    assert await states(shop, subscription) == [("LEASED", 2, 2)]


async def test_one_bad_proof_in_a_list_does_not_spoil_its_neighbours(shop: Shop) -> None:
    subscription, other = await shop.subscribe(), await shop.subscribe()
    await shop.submit(3)
    leased = proofs(await shop.claim(subscription))
    (foreign, *_) = proofs(await shop.claim(other))
    guessed = type(leased[1])(delivery_id=leased[1].delivery_id, epoch=1, lease_secret=Secret.new())
    unknown = type(leased[1])(delivery_id=new_id(), epoch=1, lease_secret=Secret.new())

    verdicts = await shop.ack(subscription, leased[2], foreign, guessed, unknown, leased[0], leased[2])

    assert words(verdicts) == [
        "ACKED",
        "REFUSED NOT_FOUND",
        "REFUSED INVALID_PROOF",
        "REFUSED NOT_FOUND",
        "ACKED",
        "ACKED",
    ]
    assert verdicts[0] == verdicts[5]
    assert [state for state, *_ in await states(shop, subscription)] == ["ACKED", "LEASED", "ACKED"]
    assert [state for state, *_ in await states(shop, other)] == ["LEASED", "LEASED", "LEASED"]


async def test_release_of_what_was_not_started_returns_the_attempt_once_and_leaves_the_window(shop: Shop) -> None:
    subscription = await shop.subscribe(window=1)
    await shop.submit(2)
    (leased,) = await shop.claim(subscription)

    with shop.platform.wake.watch(subscription_key(subscription)) as watch:
        assert words(await shop.release(subscription, leased.proof, started=False)) == ["RELEASED"]
        assert await watch.wait(0) is True
    assert words(await shop.release(subscription, leased.proof, started=False)) == ["RELEASED"]

    assert (await shop.rows(subscription))[0] == Row(leased.proof.delivery_id, "PENDING", 0, 10, 1, 0)
    assert words(await shop.ack(subscription, leased.proof)) == ["REFUSED STATE_CONFLICT"]
    (again,) = await shop.claim(subscription)
    assert (again.proof.delivery_id, again.attempt, again.proof.epoch) == (leased.proof.delivery_id, 1, 2)


async def test_release_of_what_was_started_keeps_the_attempt_spent_and_the_lease_running(shop: Shop) -> None:
    subscription = await shop.subscribe()
    await shop.submit()
    (leased,) = await shop.claim(subscription)

    assert words(await shop.release(subscription, leased.proof, started=True)) == ["RELEASED"]

    assert await states(shop, subscription) == [("LEASED", 1, 1)]
    assert await shop.claim(subscription) == []
    await shop.end_leases(subscription)
    await Sweeper(shop.platform).sweep_once()
    assert [one.attempt for one in await shop.claim(subscription)] == [2]


async def test_release_after_the_last_lease_ran_out_takes_the_delivery_back_from_expired(shop: Shop) -> None:
    subscription = await shop.subscribe(budget=1)
    await shop.submit()
    (leased,) = await shop.claim(subscription)
    await shop.end_leases(subscription)
    await Sweeper(shop.platform).sweep_once()
    assert await states(shop, subscription) == [("EXPIRED", 1, 1)]

    assert words(await shop.release(subscription, leased.proof, started=False)) == ["RELEASED"]

    assert await states(shop, subscription) == [("PENDING", 0, 1)]


async def test_a_paused_subscription_collects_and_gives_nothing_out_until_it_is_resumed(shop: Shop) -> None:
    subscription = await shop.subscribe()
    await shop.submit()
    (before,) = await shop.claim(subscription)
    await shop.set_enabled(subscription, False)
    await shop.submit(2)

    assert await shop.claim(subscription) == []
    assert [state for state, *_ in await states(shop, subscription)] == ["LEASED", "PENDING", "PENDING"]
    # What is out may still be acknowledged.
    assert words(await shop.ack(subscription, before.proof)) == ["ACKED"]

    await shop.set_enabled(subscription, True)
    assert len(await shop.claim(subscription)) == 2


async def test_a_subscription_that_does_not_exist_has_nothing_to_claim(shop: Shop) -> None:
    assert await shop.claim(new_id()) == []


async def test_the_sweeper_takes_all_that_is_over_in_batches_and_wakes_their_subscriptions(quiet_dsn: DSN) -> None:
    platform = open_node(quiet_dsn, limits=Limits(delivery_batch=2))
    try:
        shop = await Shop.open(platform, quiet_dsn)
        over, running = await shop.subscribe(), await shop.subscribe(budget=1)
        await shop.submit(5)
        while await shop.claim(over):
            pass
        await shop.claim(running)
        await shop.end_leases(over)

        with (
            platform.wake.watch(subscription_key(over)) as woken,
            platform.wake.watch(subscription_key(running)) as not_woken,
        ):
            assert await Sweeper(platform).sweep_once() == 5
            assert await woken.wait(0) is True
            assert await not_woken.wait(0) is False
        assert [state for state, *_ in await states(shop, over)] == ["PENDING"] * 5
        assert [state for state, *_ in await states(shop, running)] == ["LEASED", "LEASED", *["PENDING"] * 3]
        assert await Sweeper(platform).sweep_once() == 0
    finally:
        await platform.pool.close()


async def test_a_grant_counts_once_for_its_key_and_conflicts_with_other_content(shop: Shop) -> None:
    subscription = await shop.subscribe(budget=1)
    await shop.submit()
    await shop.claim(subscription)
    await shop.end_leases(subscription)
    await Sweeper(shop.platform).sweep_once()
    (row,) = await shop.rows(subscription)
    key = new_id()

    with shop.platform.wake.watch(subscription_key(subscription)) as watch:
        granted = await deliveries.grant(shop.platform, shop.caller, key, row.delivery_id, GrantAttempts(attempts=3))
        assert await watch.wait(0) is True
    again = await deliveries.grant(shop.platform, shop.caller, key, row.delivery_id, GrantAttempts(attempts=3))
    assert (granted.state, granted.attempt_budget) == ("PENDING", 4)
    assert again == granted
    with pytest.raises(ApiError) as conflict:
        await deliveries.grant(shop.platform, shop.caller, key, row.delivery_id, GrantAttempts(attempts=4))

    assert conflict.value.code is ErrorCode.IDEMPOTENCY_CONFLICT
    assert (await shop.rows(subscription))[0].attempt_budget == 4


async def test_a_grant_to_an_acknowledged_delivery_is_refused_and_leaves_its_key_unused(shop: Shop) -> None:
    subscription, key = await shop.subscribe(), new_id()
    await shop.submit(2)
    done, leased = proofs(await shop.claim(subscription))
    await shop.ack(subscription, done)

    with pytest.raises(ApiError) as refused:
        await deliveries.grant(shop.platform, shop.caller, key, done.delivery_id, GrantAttempts(attempts=1))
    assert refused.value.code is ErrorCode.STATE_CONFLICT

    granted = await deliveries.grant(shop.platform, shop.caller, key, leased.delivery_id, GrantAttempts(attempts=1))
    assert (granted.state, granted.attempt_budget) == ("LEASED", 11)


async def test_deliveries_of_another_application_do_not_exist(shop: Shop, quiet_dsn: DSN) -> None:
    stranger = await Shop.open(shop.platform, quiet_dsn)
    subscription = await shop.subscribe()
    await shop.submit()
    (row,) = await shop.rows(subscription)

    with pytest.raises(ApiError) as grant:
        await deliveries.grant(shop.platform, stranger.caller, new_id(), row.delivery_id, GrantAttempts(attempts=1))
    with pytest.raises(ApiError) as listing:
        await deliveries.list_page(shop.platform, stranger.caller, subscription, None, 10)

    assert (grant.value.code, listing.value.code) == (ErrorCode.NOT_FOUND, ErrorCode.NOT_FOUND)
    assert (await shop.rows(subscription))[0].attempt_budget == 10


async def test_pages_list_deliveries_of_every_state_in_order_and_once(shop: Shop) -> None:
    subscription = await shop.subscribe(budget=1)
    await shop.submit(7)
    one, two, *_ = proofs(await shop.claim(subscription, room=3))
    await shop.ack(subscription, two)
    await shop.release(subscription, one, started=False)
    await shop.end_leases(subscription)
    await Sweeper(shop.platform).sweep_once()
    await shop.claim(subscription, room=1)
    rows = await shop.rows(subscription)
    assert [row.state for row in rows] == ["LEASED", "ACKED", "EXPIRED", "PENDING", "PENDING", "PENDING", "PENDING"]

    listed = []
    after = None
    for expected in (3, 3, 1):
        page = await deliveries.list_page(shop.platform, shop.caller, subscription, after, 3)
        assert len(page.deliveries) == expected
        listed += page.deliveries
        after = page.next if isinstance(page.next, str) else None

    assert after is None
    assert [(one.delivery_id, one.state.value) for one in listed] == [(row.delivery_id, row.state) for row in rows]
    leased, acked, expired, untouched, *_ = listed
    assert isinstance(leased.lease_until, str)
    assert isinstance(acked.acked_at, str)
    assert not isinstance(expired.lease_until, str)
    assert not isinstance(untouched.epoch, str)
    assert leased.epoch == "2"

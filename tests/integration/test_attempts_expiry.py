"""What ends without a worker's word: leases that run out and tasks that wait too long."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from orbit.mysql.errors import DatabaseError
from orbit.protocol.attempt_v1 import Outcome
from orbit.protocol.limits import Limits
from orbit.server.services import expiry
from orbit.server.sweep import Sweeper
from orbit.server.wake import queue_key
from tests.support.deliveries import BUDGET_S, fresh_platform, open_node
from tests.support.rows import sql
from tests.support.worker_client import registration
from tests.support.workshop import Meddling, Workshop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from orbit.mysql.dsn import DSN
    from orbit.mysql.transaction import Transaction
    from orbit.sandbox import MySQLServer
    from orbit.server.parts import Platform

RETRIES = {"max_attempts": 2, "initial_delay_ms": 1_000, "max_delay_ms": 1_000}
BATCH = 4


@pytest.fixture
def dsn(mysql: MySQLServer) -> Iterator[DSN]:
    """A platform without any node but the test's own, and without other tests' leases."""
    with fresh_platform(mysql) as fresh:
        yield fresh


@pytest.fixture
async def platform(dsn: DSN) -> AsyncIterator[Platform]:
    """One node's parts."""
    node = open_node(dsn, limits=Limits(sweep_batch=BATCH))
    yield node
    await node.pool.close()


@pytest.fixture
async def shop(platform: Platform, dsn: DSN) -> Workshop:
    """A queue of this test's own."""
    return await Workshop.open(platform, dsn)


async def test_a_started_attempt_of_a_task_that_reconciles_needs_a_person(shop: Workshop) -> None:
    task_id = await shop.submit(retry=RETRIES)
    attempt = await (await shop.hire()).run()
    await shop.lapse(task_id)

    assert await shop.sweep() == 1

    task, [row], event = await shop.task(task_id), await shop.attempts(task_id), (await shop.events(task_id))[-1]
    assert (task["state"], task["effect_uncertain"], task["completed_at"]) == ("NEEDS_REVIEW", 1, None)
    assert (row["state"], row["outcome"], row["error_code"]) == ("ENDED", "LEASE_EXPIRED", "LEASE_EXPIRED")
    assert (event["event_type"], event["decision"]) == ("task.needs_review", "RECONCILIATION_REQUIRED")
    assert (event["node"], event["attempt_id"]) == (shop.platform.node, attempt.attempt_id)
    assert (event["attempt_count"], event["max_attempts"]) == (1, 2)
    assert await shop.sweep() == 0


async def test_a_started_attempt_of_an_idempotent_task_goes_on_and_its_effect_stays_unknown(shop: Workshop) -> None:
    task_id = await shop.submit(retry=RETRIES, idempotent=True)
    hand = await shop.hire()
    await hand.run()
    await shop.lapse(task_id)

    await shop.sweep()

    task, event = await shop.task(task_id), (await shop.events(task_id))[-1]
    assert (task["state"], task["effect_uncertain"], task["attempt_count"]) == ("WAITING", 1, 1)
    assert event["decision"] == "IDEMPOTENT_UNKNOWN"
    assert 500 <= event["delay_ms"] <= 1_000
    assert task["available_at"] == task["updated_at"] + timedelta(milliseconds=event["delay_ms"])
    # The last attempt, too, is lost: no more of them, and still nobody knows.
    await shop.due(task_id)
    await hand.run()
    await shop.lapse(task_id)
    await shop.sweep()
    task = await shop.task(task_id)
    assert (task["state"], task["effect_uncertain"]) == ("NEEDS_REVIEW", 1)
    assert (await shop.events(task_id))[-1]["decision"] == "ATTEMPT_LIMIT"


async def test_attempts_that_never_start_spend_the_budget(shop: Workshop) -> None:
    task_id = await shop.submit(retry=RETRIES)
    hand = await shop.hire()
    for _ in range(2):
        await hand.take()
        await shop.lapse(task_id)
        await shop.sweep()
        await shop.due(task_id)

    task, rows, events = await shop.task(task_id), await shop.attempts(task_id), await shop.events(task_id)
    assert (task["state"], task["error_code"], task["effect_uncertain"]) == ("FAILED", "UNSTARTED_LEASE_EXPIRED", 0)
    assert task["completed_at"] is not None
    assert [row["outcome"] for row in rows] == ["UNSTARTED", "UNSTARTED"]
    assert [one.get("decision") for one in events] == [None, None, "UNSTARTED_LEASE_EXPIRED", None, "ATTEMPT_LIMIT"]
    assert await hand.claim() == []


async def test_a_lease_that_was_renewed_is_left_alone(shop: Workshop) -> None:
    task_id = await shop.submit()
    hand = await shop.hire()
    attempt = await hand.run()
    await hand.renew(attempt)
    assert await shop.sweep() == 0
    assert (await shop.task(task_id))["state"] == "RUNNING"


@pytest.mark.parametrize("column", ["deadline_at", "latest_start_at"])
@pytest.mark.parametrize("uncertain", [False, True])
async def test_a_task_that_waited_too_long_ends(shop: Workshop, column: str, uncertain: bool) -> None:
    task_id = await shop.submit(retry=RETRIES, idempotent=True)
    if uncertain:
        hand = await shop.hire()
        await hand.finish(await hand.run(), Outcome.UNKNOWN)
    await shop.sql(f"UPDATE tasks SET {column} = UTC_TIMESTAMP(6) WHERE task_id = :id", id=task_id)

    assert await shop.sweep() == 1

    task, event = await shop.task(task_id), (await shop.events(task_id))[-1]
    assert (task["state"], task["error_code"]) == ("NEEDS_REVIEW" if uncertain else "FAILED", "DEADLINE_EXCEEDED")
    assert task["effect_uncertain"] == uncertain
    assert (event["decision"], event["node"]) == ("DEADLINE_EXCEEDED", shop.platform.node)
    assert (event["attempt_count"], event["max_attempts"]) == (int(uncertain), 2)
    assert "attempt_id" not in event
    assert await shop.sweep() == 0


async def test_a_running_task_is_not_ended_by_its_latest_start(shop: Workshop) -> None:
    task_id = await shop.submit()
    await (await shop.hire()).run()
    await shop.sql("UPDATE tasks SET latest_start_at = UTC_TIMESTAMP(6) WHERE task_id = :id", id=task_id)
    assert await shop.sweep() == 0


@pytest.mark.parametrize(
    "change", ["lease_until = UTC_TIMESTAMP(6) + INTERVAL 30 SECOND", "state = 'ENDED', ended_at = lease_until"]
)
async def test_a_lease_is_looked_at_again_under_its_lock(shop: Workshop, dsn: DSN, change: str) -> None:
    task_id = await shop.submit()
    await (await shop.hire()).run()
    await shop.lapse(task_id)

    async def meddle() -> None:
        await shop.sql(f"UPDATE attempts SET {change} WHERE task_id = :id", id=task_id)

    pool = Meddling(dsn, meddle)
    try:
        assert await expiry.end_leases(replace(shop.platform, pool=pool)) == 0
    finally:
        await pool.close()
    assert (await shop.task(task_id))["state"] == "RUNNING"


async def test_one_pass_ends_more_than_a_batch(shop: Workshop) -> None:
    ids = [await shop.submit() for _ in range(2 * BATCH + 1)]
    await (await shop.hire()).claim()
    for task_id in ids:
        await shop.lapse(task_id)
    assert await shop.sweep() == len(ids)


async def test_sweepers_of_several_nodes_end_each_once(shop: Workshop, dsn: DSN) -> None:
    """More than several batches of leases and of waiting tasks, at three nodes at once."""
    hand = await shop.hire(registration(shop.queue_id, capacity=40), capacity=40)
    leased = [await shop.submit(retry=RETRIES) for _ in range(3 * BATCH + 1)]
    while await hand.claim():
        pass
    waiting = [await shop.submit() for _ in range(2 * BATCH + 1)]
    for task_id in leased:
        await shop.lapse(task_id)
    for task_id in waiting:
        await shop.sql("UPDATE tasks SET deadline_at = UTC_TIMESTAMP(6) WHERE task_id = :id", id=task_id)
    others = [open_node(dsn, lanes=2, limits=shop.platform.limits) for _ in range(2)]
    shops = [shop, *map(shop.through, others)]

    try:
        counts = await asyncio.gather(*(one.sweep() for one in shops))
        # Whoever skipped what others were at finds nothing left.
        counts += [await one.sweep() for one in shops]
    finally:
        for node in others:
            await node.pool.close()

    assert sum(counts) == len(leased) + len(waiting)
    for task_id in leased:
        assert (await shop.task(task_id))["version"] == 3
    for task_id in waiting:
        assert (await shop.task(task_id))["version"] == 2
    nodes = {(await shop.events(task_id))[-1]["node"] for task_id in (*leased, *waiting)}
    assert nodes <= {one.platform.node for one in shops}


async def test_a_finish_and_a_sweeper_at_once_leave_one_ending(shop: Workshop, dsn: DSN) -> None:
    hand = await shop.hire()
    node = open_node(dsn, limits=shop.platform.limits)
    try:
        for _ in range(5):
            task_id = await shop.submit(retry=RETRIES)
            attempt = await hand.run()
            await shop.lapse(task_id)
            result, _ = await asyncio.gather(hand.finish(attempt), shop.through(node).sweep())
            assert result.disposition == "EVIDENCE_ONLY"
            await shop.sweep()
            assert ((await shop.task(task_id))["state"], (await shop.task(task_id))["version"]) == ("NEEDS_REVIEW", 4)
    finally:
        await node.pool.close()


async def test_what_cannot_be_written_does_not_hold_up_the_rest(shop: Workshop) -> None:
    """The oldest lease's task is one whose row refuses: its version is at the end of its range."""
    ids = [await shop.submit(retry=RETRIES) for _ in range(2)]
    await (await shop.hire()).claim()
    for task_id in ids:
        await shop.lapse(task_id)
    await shop.sql("UPDATE tasks SET version = 18446744073709551615 WHERE task_id = :id", id=ids[0])

    assert await shop.sweep() == 1

    assert (await shop.task(ids[0]))["state"] == "LEASED"
    assert (await shop.task(ids[1]))["state"] == "WAITING"


async def test_more_than_a_batch_that_cannot_be_written_does_not_hold_up_the_rest(shop: Workshop) -> None:
    """Neither once nor at the next pass."""
    ids = [await shop.submit() for _ in range(2 * BATCH + 1)]
    for number, task_id in enumerate(ids):
        await shop.sql(
            "UPDATE tasks SET deadline_at = UTC_TIMESTAMP(6) - INTERVAL :age SECOND, version = :version"
            " WHERE task_id = :id",
            age=1000 - number,
            version=1 if task_id == ids[-1] else 18446744073709551615,
            id=task_id,
        )
    try:
        assert await shop.sweep() == 1
        assert (await shop.task(ids[-1]))["state"] == "FAILED"
        assert await shop.sweep() == 0
    finally:
        await shop.sql("UPDATE tasks SET version = 1 WHERE queue_id = :id", id=shop.queue_id)
        await shop.sweep()


async def test_an_ending_wakes_who_waits_for_tasks(shop: Workshop) -> None:
    task_id = await shop.submit(retry=RETRIES)
    await (await shop.hire()).take()
    await shop.lapse(task_id)
    with shop.platform.wake.watch(queue_key(shop.queue_id)) as watch:
        watch.arm()
        await shop.sweep()
        assert await watch.wait(0)


async def test_one_pass_of_the_sweeper_does_it_all(shop: Workshop) -> None:
    leased, late = await shop.submit(retry=RETRIES), await shop.submit(handler="other")
    await (await shop.hire()).take()
    await shop.lapse(leased)
    await shop.sql("UPDATE tasks SET deadline_at = UTC_TIMESTAMP(6) WHERE task_id = :id", id=late)

    assert await Sweeper(shop.platform).sweep_once() == 2


async def test_a_database_that_is_busy_is_not_mistaken_for_a_row_that_cannot_be_written(
    shop: Workshop, dsn: DSN
) -> None:
    task_id = await shop.submit()
    await (await shop.hire()).take()
    await shop.lapse(task_id)
    hurried = open_node(dsn, limits=Limits(transaction_s=0.5))

    async def meanwhile(tx: Transaction) -> None:
        await tx.fetch(sql("SELECT 1 FROM queues WHERE queue_id = :id FOR UPDATE"), {"id": shop.queue_id})
        with pytest.raises(DatabaseError) as caught:
            await expiry.end_leases(hurried)
        assert caught.value.kind.passes

    try:
        await shop.platform.pool.read(meanwhile, budget_s=BUDGET_S)
    finally:
        await hurried.pool.close()
    assert await shop.sweep() == 1

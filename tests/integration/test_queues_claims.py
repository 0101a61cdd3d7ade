"""Claims: order, bounds, permits, and several nodes at the same tasks."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from orbit.mysql.statement import Statement
from orbit.protocol.errors import ApiError, ErrorCode
from orbit.protocol.http_v1 import QueueLimits
from orbit.protocol.limits import Limits
from orbit.protocol.values import new_id
from orbit.protocol.worker_v1 import Capability
from orbit.server import attempt_statements, claim_statements
from orbit.server.services import candidates, claim, expiry, queues, workers
from orbit.server.services.claim import Next
from tests.support.deliveries import BUDGET_S, fresh_platform, open_node
from tests.support.rows import sql
from tests.support.worker_client import TEXT
from tests.support.workshop import Meddling, Workshop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from orbit.mysql.dsn import DSN
    from orbit.mysql.transaction import Transaction
    from orbit.sandbox import MySQLServer
    from orbit.server.parts import Platform
    from tests.support.workshop import Hand

T = TypeVar("T")


@pytest.fixture(scope="module")
def dsn(mysql: MySQLServer) -> Iterator[DSN]:
    """A platform without any node but the test's own."""
    with fresh_platform(mysql) as fresh:
        yield fresh


@pytest.fixture(scope="module")
async def platform(dsn: DSN) -> AsyncIterator[Platform]:
    """One node's parts."""
    node = open_node(dsn)
    yield node
    await node.pool.close()


@pytest.fixture(scope="module")
async def second(dsn: DSN) -> AsyncIterator[Platform]:
    """Another node's parts."""
    node = open_node(dsn)
    yield node
    await node.pool.close()


@pytest.fixture
async def shop(platform: Platform, dsn: DSN) -> Workshop:
    """A queue of this test's own."""
    return await Workshop.open(platform, dsn)


async def claimed(hand: Hand) -> list[str]:
    """The ids of the tasks of one claim, in its order."""
    return [one.task.task_id for one in await hand.claim()]


async def limit(shop: Workshop, **given: int) -> None:
    """Set the queue's limits, and no others."""
    await queues.set_limits(shop.platform, shop.caller, shop.queue_id, QueueLimits(**given))


async def waited(shop: Workshop, task_id: str, seconds: float) -> None:
    """Let a task have been available for so long."""
    await shop.sql(
        "UPDATE tasks SET available_at = UTC_TIMESTAMP(6) - INTERVAL :us MICROSECOND WHERE task_id = :id",
        us=int(seconds * 1_000_000),
        id=task_id,
    )


async def test_a_claim_spends_an_attempt_and_is_a_version_and_an_event(shop: Workshop) -> None:
    task_id = await shop.submit(payload='{ "n": 1.10 }', priority=3, retry={"max_attempts": 4})
    hand = await shop.hire()

    (assignment,) = await hand.claim()

    task, [row], event = await shop.task(task_id), await shop.attempts(task_id), (await shop.events(task_id))[-1]
    assert (task["state"], task["version"], task["attempt_count"]) == ("LEASED", 2, 1)
    assert (row["state"], row["epoch"], row["instance_id"]) == ("LEASED", 1, hand.session.instance_id)
    assert (row["lease_until"] - row["leased_at"]).total_seconds() == 30
    assert row["leased_at"] == task["updated_at"]
    assert row["node"] == shop.platform.node
    assert (event["event_type"], event["attempt_id"], event["attempt_count"]) == ("task.leased", row["attempt_id"], 1)
    assert bytes(assignment.task.payload) == b'{ "n": 1.10 }'
    assert (assignment.task.attempt_number, assignment.task.max_attempts, assignment.task.priority) == (1, 4, 3)
    assert assignment.attempt.lease_secret.matches(row["lease_secret_sha256"])
    assert assignment.lease.lease_until == row["lease_until"].replace(tzinfo=UTC)
    assert assignment.lease.server_time == row["leased_at"].replace(tzinfo=UTC)
    assert await hand.claim() == []


async def test_dispatch_goes_by_priority_and_age_then_due_time(shop: Workshop) -> None:
    # By hand: min(9, priority + waited // 30), highest first; among equals whoever waits longest.
    wanted = [(0, 1000), (9, 500), (3, 180), (9, 1), (8, 29), (6, 31), (7, 3), (6, 29), (5, 2), (0, 0)]
    ids = [await shop.submit(priority=priority) for priority, _ in reversed(wanted)][::-1]
    for task_id, (_, seconds) in zip(ids, wanted, strict=True):
        await waited(shop, task_id, seconds)
    hand = await shop.hire(capacity=4)

    order = await claimed(hand)
    order += await claimed(await shop.hire(capacity=16))

    assert order == ids


async def test_tasks_that_are_equal_go_by_id(shop: Workshop) -> None:
    ids = sorted([await shop.submit() for _ in range(6)])
    await shop.sql("UPDATE tasks SET available_at = '2026-01-01' WHERE queue_id = :id", id=shop.queue_id)
    hand = await shop.hire(capacity=2)

    assert await claimed(hand) == ids[:2]
    assert await claimed(await shop.hire()) == ids[2:]


async def test_a_claim_takes_only_what_the_worker_can_do(shop: Workshop) -> None:
    mine = await shop.submit()
    await shop.submit(handler="text.Normalize")
    await shop.submit(handler_version="v2")
    await shop.submit(payload_version="v2")
    other = await shop.submit(handler="other")

    assert await claimed(await shop.hire()) == [mine]
    both = (TEXT, Capability(handler="other", handler_version="v1", payload_version="v1"))
    assert await claimed(await shop.hire(capabilities=both)) == [other]


async def test_no_more_than_the_capacity_is_held_whoever_asks(shop: Workshop, second: Platform) -> None:
    for _ in range(8):
        await shop.submit()
    hand = await shop.hire(capacity=3)

    first = await asyncio.gather(hand.claim(), hand.through(second).claim(), hand.claim())

    held = list(itertools.chain.from_iterable(first))
    assert len(held) == 3
    # A new session of the same process holds what it held before.
    again = await shop.hire(hand.hello, capacity=5)
    assert len(await again.claim()) == 2
    await again.start(held[0].attempt)
    await again.finish(held[0].attempt)
    assert len(await again.claim()) == 1


@pytest.mark.parametrize("capacity", [None, 0])
async def test_nothing_is_claimed_without_capacity(shop: Workshop, capacity: int | None) -> None:
    await shop.submit()
    assert await claimed(await shop.hire(capacity=capacity)) == []


async def test_a_session_that_was_not_renewed_gets_nothing_until_it_is(shop: Workshop) -> None:
    await shop.submit()
    hand = await shop.hire()
    await shop.sql(
        "UPDATE worker_instances SET session_until = UTC_TIMESTAMP(6) WHERE instance_id = :id",
        id=hand.session.instance_id,
    )
    assert await claimed(hand) == []
    await hand.announce(16, sequence=2)
    assert len(await claimed(hand)) == 1


async def test_a_worker_whose_credential_was_revoked_gets_nothing_more(shop: Workshop) -> None:
    await shop.submit()
    await shop.submit()
    hand = await shop.hire(capacity=1)
    attempt = await hand.run()
    await shop.sql(
        "UPDATE credentials SET revoked_at = UTC_TIMESTAMP(6) WHERE credential_id = :id", id=shop.caller.credential_id
    )

    # What it holds it may still report.
    assert (await hand.finish(attempt)).receipt.task_state == "SUCCEEDED"
    assert await hand.claim() == []


async def test_a_draining_worker_gets_nothing_and_says_so_for_good(shop: Workshop) -> None:
    await shop.submit()
    hand = await shop.hire()
    await hand.announce(16, sequence=2, drain=True)
    assert await claimed(hand) == []

    again = await shop.hire(hand.hello, capacity=None)
    with pytest.raises(ApiError) as caught:
        await again.announce(16)
    assert caught.value.code is ErrorCode.STATE_CONFLICT
    await again.announce(16, drain=True)
    assert await claimed(again) == []


async def test_a_paused_queue_stops_claims_and_nothing_else(shop: Workshop) -> None:
    await shop.submit()
    await shop.submit()
    hand = await shop.hire(capacity=1)
    attempt = await hand.take()
    await queues.set_paused(shop.platform, shop.caller, shop.queue_id, paused=True)

    other = await shop.hire()
    assert await claimed(other) == []
    await hand.start(attempt)
    await hand.renew(attempt)
    await hand.finish(attempt)
    await queues.set_paused(shop.platform, shop.caller, shop.queue_id, paused=False)
    assert len(await claimed(other)) == 1


@pytest.mark.parametrize("column", ["deadline_at", "latest_start_at"])
async def test_a_task_that_may_not_start_any_more_is_not_claimed(shop: Workshop, column: str) -> None:
    task_id = await shop.submit()
    await shop.sql(f"UPDATE tasks SET {column} = UTC_TIMESTAMP(6) WHERE task_id = :id", id=task_id)
    assert await claimed(await shop.hire()) == []


async def test_tasks_that_came_too_late_hide_no_others(shop: Workshop) -> None:
    """Nobody has swept them yet."""
    for _ in range(2 * Limits().claim_batch + 5):
        await shop.submit(priority=1)
    await shop.sql("UPDATE tasks SET deadline_at = UTC_TIMESTAMP(6) WHERE queue_id = :id", id=shop.queue_id)
    task_id = await shop.submit(priority=1)
    assert await claimed(await shop.hire()) == [task_id]


async def test_a_task_that_is_not_due_is_no_reason_to_ask_again(shop: Workshop) -> None:
    task_id = await shop.submit()
    await waited(shop, task_id, -60)
    assert (await (await shop.hire()).ask()).then is Next.LATER


@pytest.mark.parametrize(
    "change",
    [
        "state = 'CANCELLED'",
        "available_at = UTC_TIMESTAMP(6) + INTERVAL 1 HOUR",
        "deadline_at = UTC_TIMESTAMP(6)",
        "latest_start_at = UTC_TIMESTAMP(6)",
        "cancel_requested_at = UTC_TIMESTAMP(6)",
    ],
)
async def test_what_was_found_is_looked_at_again_under_its_lock(shop: Workshop, dsn: DSN, change: str) -> None:
    task_id = await shop.submit()
    hand = await shop.hire()

    async def meddle() -> None:
        await shop.sql(f"UPDATE tasks SET {change} WHERE task_id = :id", id=task_id)

    pool = Meddling(dsn, meddle)
    situation = await workers.look(shop.platform, hand.session)
    try:
        found = await claim.claim(replace(shop.platform, pool=pool), hand.session, situation)
    finally:
        await pool.close()

    assert (found.assignments, found.then) == ((), Next.SOON)
    assert await shop.attempts(task_id) == []


async def test_a_claim_passes_over_what_others_are_at(shop: Workshop, second: Platform) -> None:
    first, other = sorted([await shop.submit(), await shop.submit()])
    await shop.sql("UPDATE tasks SET available_at = '2026-01-01' WHERE queue_id = :id", id=shop.queue_id)
    hand = await shop.hire(capacity=1)

    async def meanwhile(tx: Transaction) -> list[str]:
        await tx.fetch(sql("SELECT 1 FROM tasks WHERE task_id = :id FOR UPDATE"), {"id": first})
        async with asyncio.timeout(1):
            return await claimed(hand)

    assert await second.pool.read(meanwhile, budget_s=BUDGET_S) == [other]


async def test_a_lease_ends_with_the_latest_start(shop: Workshop) -> None:
    task_id = await shop.submit()
    await shop.sql(
        "UPDATE tasks SET latest_start_at = UTC_TIMESTAMP(6) + INTERVAL 7 SECOND WHERE task_id = :id", id=task_id
    )
    (assignment,) = await (await shop.hire()).claim()
    assert assignment.lease.lease_until is not None
    assert assignment.lease.lease_until.replace(tzinfo=None) == (await shop.task(task_id))["latest_start_at"]


async def test_many_claims_at_once_give_each_task_to_one_worker(shop: Workshop, second: Platform) -> None:
    ids = {await shop.submit() for _ in range(40)}
    hands = [await shop.hire(capacity=5) for _ in range(4)]
    hands += [one.through(second) for one in [await shop.hire(capacity=5) for _ in range(4)]]
    got: list[str] = []

    async def work(hand: Hand) -> None:
        async with asyncio.timeout(30):
            while len(got) < len(ids):
                tasks = await hand.ask()
                got.extend(one.task.task_id for one in tasks.assignments)
                if tasks.then is Next.LATER and len(got) < len(ids) and not tasks.assignments:
                    return

    await asyncio.gather(*(work(one) for one in hands))

    assert sorted(got) == sorted(ids)
    assert {(await shop.task(one))["attempt_count"] for one in ids} == {1}


async def test_no_more_than_the_queues_limit_runs_at_once(shop: Workshop, second: Platform) -> None:
    await limit(shop, concurrency_limit=3)
    for _ in range(10):
        await shop.submit()
    hands = [await shop.hire() for _ in range(4)]

    found = await asyncio.gather(*(one.through(second).claim() for one in hands[:2]), *(one.claim() for one in hands))

    held = [(hand, one) for hand, some in zip([*hands[:2], *hands], found, strict=True) for one in some]
    assert len(held) == 3
    hand, assignment = held[0]
    await hand.start(assignment.attempt)
    assert await claimed(hands[3]) == []
    await hand.finish(assignment.attempt)
    assert len(await claimed(hands[3])) == 1
    await limit(shop)
    assert len(await claimed(hands[3])) == 6


async def test_a_key_runs_one_task_at_a_time_and_its_token_grows(shop: Workshop) -> None:
    ids = [await shop.submit(concurrency_key="printer") for _ in range(3)]
    free = await shop.submit()
    hand = await shop.hire(concurrency_keys=True)

    assignments = await hand.claim()

    assert [one.task.task_id for one in assignments] == [ids[0], free]
    assert [(one.task.concurrency_key, one.task.concurrency_token) for one in assignments] == [
        ("printer", 1),
        (None, None),
    ]
    assert await hand.claim() == []
    await hand.start(assignments[0].attempt)
    await hand.finish(assignments[0].attempt)
    (second,) = await hand.claim()
    assert (second.task.task_id, second.task.concurrency_token) == (ids[1], 2)
    # An attempt that nobody ends gives its permit back with its lease.
    await shop.lapse(ids[1])
    await shop.sweep()
    (third,) = await hand.claim()
    assert (third.task.task_id, third.task.concurrency_token) == (ids[2], 3)


async def test_keys_are_the_queues_own_and_other_keys_do_not_wait(shop: Workshop, dsn: DSN) -> None:
    elsewhere = await Workshop.open(shop.platform, dsn)
    for one in (shop, elsewhere):
        await one.submit(concurrency_key="a")
        await one.submit(concurrency_key="A")

    for one in (shop, elsewhere):
        assert len(await (await one.hire(concurrency_keys=True)).claim()) == 2


async def test_a_worker_that_knows_no_keys_gets_no_keyed_task(shop: Workshop) -> None:
    await shop.submit(concurrency_key="printer")
    free = await shop.submit()
    assert await claimed(await shop.hire()) == [free]


async def test_a_key_that_comes_twice_takes_one_place(shop: Workshop) -> None:
    keyed = [await shop.submit(concurrency_key="printer") for _ in range(2)]
    free = await shop.submit()
    assert await claimed(await shop.hire(concurrency_keys=True, capacity=2)) == [keyed[0], free]


async def test_keyed_tasks_that_have_to_wait_hide_no_others(shop: Workshop) -> None:
    """Many older tasks whose key is taken stand before the one that can go."""
    for _ in range(2 * Limits().claim_batch + 5):
        await shop.submit(concurrency_key="printer", priority=9)
    hand = await shop.hire(concurrency_keys=True)
    assert len(await claimed(hand)) == 1
    free = await shop.submit()
    other = await shop.submit(concurrency_key="zebra")
    assert await claimed(hand) == [free, other]
    assert (await hand.ask()).then is Next.LATER


async def test_the_order_of_dispatch_holds_across_keys(shop: Workshop) -> None:
    """Within the tasks of one key, between keys, and with tasks that have none."""
    await shop.sql(FILL, queue=shop.queue_id, start=NOW, count=300, key="m")
    for key, priority in [("a", 3), ("m", 8), ("z", 9), ("a", 5)]:
        await shop.submit(priority=priority, concurrency_key=key)
    for priority in (7, 2):
        await shop.submit(priority=priority)

    found = await (await shop.hire(concurrency_keys=True)).claim()

    assert [(one.task.concurrency_key, one.task.priority) for one in found] == [
        ("z", 9),
        ("m", 8),
        (None, 7),
        ("a", 5),
        (None, 2),
    ]


async def test_every_key_has_its_turn_behind_more_tasks_than_a_look_reads(shop: Workshop) -> None:
    """Each of twelve keys has more tasks that are not due than a page holds, and the last one a task that is."""
    for number in range(12):
        key = f"key-{number:02}"
        await shop.sql(FILL, queue=shop.queue_id, start=TOMORROW, count=candidates.PAGE + 1, key=key)
    last = await shop.submit(concurrency_key="key-11", priority=9)
    hand = await shop.hire(concurrency_keys=True, capacity=1)

    looks = [await hand.ask() for _ in range(2)]

    # Eight keys in the first look.
    assert [(look.then, [one.task.task_id for one in look.assignments]) for look in looks] == [
        (Next.SOON, []),
        (Next.AT_ONCE, [last]),
    ]


async def test_claims_of_one_key_at_once_grant_it_once(shop: Workshop, second: Platform) -> None:
    """Each worker takes one task, so each tries another one of those with the key."""
    for _ in range(4):
        await shop.submit(concurrency_key="printer")
    hands = [await shop.hire(concurrency_keys=True, capacity=1) for _ in range(4)]

    found = await asyncio.gather(
        *(one.claim() for one in hands[:2]), *(one.through(second).claim() for one in hands[2:])
    )

    assert sum(len(one) for one in found) == 1


async def test_starts_are_limited_by_window_and_the_lease_stays(shop: Workshop) -> None:
    for _ in range(2):
        await shop.submit()
    hand = await shop.hire()
    first, second = [one.attempt for one in await hand.claim()]
    await limit(shop, start_limit=1, start_window_ms=86_400_000)
    await hand.start(first)
    before = await shop.attempts(second.task_id)

    with pytest.raises(ApiError) as caught:
        await hand.start(second)

    assert caught.value.code is ErrorCode.RATE_LIMITED
    assert await shop.attempts(second.task_id) == before
    assert (await shop.task(second.task_id))["state"] == "LEASED"
    assert [row["starts"] for row in await shop.table("queue_starts", queue_id=shop.queue_id)] == [1]
    await limit(shop, start_limit=2, start_window_ms=86_400_000)
    await hand.start(second)


async def test_tasks_that_could_not_start_in_this_window_are_not_claimed(shop: Workshop) -> None:
    await limit(shop, start_limit=3, start_window_ms=86_400_000)
    for _ in range(5):
        await shop.submit()
    hand = await shop.hire()
    assignments = await hand.claim()
    assert len(assignments) == 3
    for one in assignments:
        await hand.start(one.attempt)
        await hand.finish(one.attempt)
    assert await hand.claim() == []


async def test_leases_of_an_earlier_window_that_never_started_keep_nobody_out(shop: Workshop) -> None:
    """Their worker is dead, and they have not run out yet."""
    await limit(shop, start_limit=2, start_window_ms=86_400_000)
    ids = [await shop.submit() for _ in range(4)]
    assert len(await (await shop.hire()).claim()) == 2
    other = await shop.hire()
    assert await other.claim() == []

    await shop.sql("UPDATE attempts SET leased_at = leased_at - INTERVAL 1 DAY WHERE queue_id = :id", id=shop.queue_id)

    assert await claimed(other) == ids[2:]


async def test_a_new_window_forgets_the_old_ones(shop: Workshop) -> None:
    await limit(shop, start_limit=1, start_window_ms=86_400_000)
    await shop.submit()
    await shop.submit()
    hand = await shop.hire()
    await hand.run()
    assert await hand.claim() == []
    await shop.sql(
        "UPDATE queue_starts SET window_start = window_start - INTERVAL 1 DAY WHERE queue_id = :id", id=shop.queue_id
    )

    await hand.run()

    assert [row["starts"] for row in await shop.table("queue_starts", queue_id=shop.queue_id)] == [1]


async def test_a_window_is_kept_for_starts_that_read_the_clock_before_it_ended(shop: Workshop) -> None:
    await shop.submit()
    await shop.submit()
    hand = await shop.hire()
    first, second = [one.attempt for one in await hand.claim()]
    await limit(shop, start_limit=1, start_window_ms=86_400_000)
    await hand.start(first)
    await shop.sql(
        "UPDATE queue_starts SET window_start = window_start - INTERVAL 4 SECOND WHERE queue_id = :id", id=shop.queue_id
    )

    await hand.start(second)

    assert [row["starts"] for row in await shop.table("queue_starts", queue_id=shop.queue_id)] == [1, 1]


async def test_starts_at_once_pass_no_limit(shop: Workshop, second: Platform) -> None:
    for _ in range(6):
        await shop.submit()
    hand = await shop.hire()
    assignments = await hand.claim()
    await limit(shop, start_limit=3, start_window_ms=86_400_000)
    elsewhere = hand.through(second)

    results = await asyncio.gather(
        *((hand, elsewhere)[number % 2].start(one.attempt) for number, one in enumerate(assignments)),
        return_exceptions=True,
    )

    refused = [one for one in results if isinstance(one, BaseException)]
    assert len(refused) == 3
    assert {one.code for one in refused if isinstance(one, ApiError)} == {ErrorCode.RATE_LIMITED}


FILL = (
    "INSERT INTO tasks (task_id, namespace_id, application_id, queue_id, handler, handler_version, payload_version,"
    " payload, recovery_safety, task_timeout_ms, retry_max_attempts, retry_initial_delay_ms, retry_max_delay_ms,"
    " attempt_timeout_ms, priority, concurrency_key, state, version, attempt_count, effect_uncertain, available_at,"
    " deadline_at, created_at, updated_at)"
    " WITH digits (d) AS (VALUES ROW(0), ROW(1), ROW(2), ROW(3), ROW(4), ROW(5), ROW(6), ROW(7), ROW(8), ROW(9)),"
    " numbers (i) AS (SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d FROM digits a, digits b, digits c, digits e)"
    " SELECT LEFT(SHA2(CONCAT(:queue, :start, COALESCE(:key, ''), i), 256), 32), REPEAT('a', 32), REPEAT('a', 32),"
    " :queue, 'text.normalize', 'v1', 'v1', '{}', 'RECONCILE_ONLY', 1, 1, 1, 1, 1, i MOD 3, :key, 'WAITING', 1, 0, 0,"
    " UTC_TIMESTAMP(6) + INTERVAL :start SECOND + INTERVAL i MICROSECOND, UTC_TIMESTAMP(6) + INTERVAL 1 DAY,"
    " UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) FROM numbers WHERE i < :count"
)
NOW, TOMORROW = -1, 80_000


async def rows_read(shop: Workshop, hand: Hand, found: list[str] | None = None) -> int:
    """How many rows and index entries the look for candidates reads, by the server's own count."""
    pool = Counting(shop.platform)
    look = await candidates.look(replace(shop.platform, pool=pool), hand.session, 17)  # type: ignore[arg-type]  # - only reads
    if found is not None:
        found += look.task_ids
    return pool.read_rows


class Counting:
    """A pool that counts what its reads read."""

    def __init__(self, platform: Platform) -> None:
        self._pool = platform.pool
        self.read_rows = 0

    async def read(self, work: Callable[[Transaction], Awaitable[T]], *, budget_s: float) -> T:
        async def counted(tx: Transaction) -> T:
            before = await handler_reads(tx)
            found = await work(tx)
            self.read_rows = await handler_reads(tx) - before
            return found

        return await self._pool.read(counted, budget_s=budget_s)


async def handler_reads(tx: Transaction) -> int:
    """The session's reads by index so far."""
    counted = {"Handler_read_key", "Handler_read_next", "Handler_read_prev", "Handler_read_first"}
    found = await tx.fetch(Statement("SHOW SESSION STATUS LIKE 'Handler_read%%'"))
    return sum(int(count) for name, count in found if name in counted)


async def test_a_look_for_candidates_costs_the_same_in_a_long_queue(platform: Platform, dsn: DSN) -> None:
    read: dict[str, int] = {}
    for name, starts in {
        "empty": [],
        "hundred": [(NOW, 100)],
        "ten thousand": [(NOW, 10_000)],
        "none due": [(TOMORROW, 10_000)],
        "few due": [(NOW, 6), (TOMORROW, 9_994)],
    }.items():
        shop = await Workshop.open(platform, dsn)
        for start, count in starts:
            await shop.sql(FILL, queue=shop.queue_id, start=start, count=count, key=None)
        read[name] = await rows_read(shop, await shop.hire())

    # Ten priorities; of the three that are there, at most seventeen tasks and the entry after the last.
    assert read["empty"] <= 10
    assert read["hundred"] == read["ten thousand"] <= 10 + 3 * 18
    assert read["none due"] <= read["hundred"]
    assert read["few due"] <= read["hundred"]


async def test_a_look_does_not_read_the_tasks_that_wait_for_a_key(platform: Platform, dsn: DSN) -> None:
    read: dict[int, tuple[int, int]] = {}
    for count in (1_000, 10_000):
        shop = await Workshop.open(platform, dsn)
        await shop.sql(FILL, queue=shop.queue_id, start=NOW, count=count, key="held")
        keyed, keyless = await shop.hire(concurrency_keys=True), await shop.hire()
        (holder,) = await keyed.claim()
        assert holder.task.concurrency_key == "held"
        other = await shop.submit(concurrency_key="other", priority=9)
        free = await shop.submit(priority=8)
        found: list[str] = []
        read[count] = await rows_read(shop, keyed, found), await rows_read(shop, keyless)
        assert found == [other, free]

    assert read[1_000] == read[10_000]
    # Ten priorities and the task; for the keys the last one, two pages, and the permit of each of their tasks.
    assert read[10_000][1] <= 10 + 2
    assert read[10_000][0] <= 12 + 2 + 3 * candidates.PAGE


async def test_the_reads_of_a_claim_go_by_their_indexes(shop: Workshop) -> None:
    await shop.sql(FILL, queue=shop.queue_id, start=NOW, count=1_000, key=None)
    capabilities = claim_statements.capabilities_text([TEXT])
    by_index: list[tuple[Statement, dict[str, Any]]] = [
        (
            claim_statements.CANDIDATES,
            {"capabilities": capabilities, "queue_id": shop.queue_id, "first": 17, "count": 17},
        ),
        (claim_statements.LOCK_TASKS, {"task_ids": [new_id(), new_id()], "queue_id": shop.queue_id}),
        (claim_statements.OPEN_IN_QUEUE, {"queue_id": shop.queue_id, "since": datetime(2026, 1, 1)}),  # noqa: DTZ001 - as the database gives times
        (attempt_statements.LOCK_BOTH, {"task_id": new_id(), "attempt_id": new_id()}),
        (attempt_statements.RECEIPT_OF_REPORT, {"attempt_id": new_id(), "report_sha256": "a" * 64}),
        (expiry.LEASES_OVER, {"batch": 10}),
        (expiry.OVERDUE, {"batch": 10}),
    ]
    for statement, parameters in by_index:
        plan = await explained(shop, statement, parameters)
        scanned = [row for row in plan if row["type"] == "ALL" and row["table"] in {"tasks", "attempts"}]
        assert scanned == [], statement.text


async def explained(shop: Workshop, statement: Statement, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """The traditional plan of a statement, by column."""
    explain = replace(statement, text="EXPLAIN FORMAT=TRADITIONAL " + statement.text.lstrip())

    async def work(tx: Transaction) -> list[tuple[Any, ...]]:
        return await tx.fetch(explain, parameters)

    names = (
        *("id", "select_type", "table", "partitions", "type", "possible_keys", "key", "key_len", "ref", "rows"),
        *("filtered", "extra"),
    )
    found = await shop.platform.pool.read(work, budget_s=BUDGET_S)
    return [dict(zip(names, row, strict=True)) for row in found]


async def test_an_idle_worker_asks_without_a_commit(shop: Workshop) -> None:
    task_id = await shop.submit()
    await waited(shop, task_id, -60)
    hand = await shop.hire()
    before = replace(shop.platform.pool.tally)
    for _ in range(3):
        assert (await hand.ask()).assignments == ()
    assert shop.platform.pool.tally == before

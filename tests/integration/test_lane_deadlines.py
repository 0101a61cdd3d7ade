"""Budgets, deadlines and cancellations before COMMIT. Those inside COMMIT are with the fault tests."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from orbit.mysql.errors import Kind, NotCommitted, Stage
from orbit.mysql.lane import Outcome, Tally
from orbit.mysql.times import DEFAULT_TIMES
from tests.support.lanes import (
    BUMP,
    COUNT,
    INSERT,
    Gate,
    LaneBench,
    holding,
    inserting,
    lane_bench,
    settled,
    until,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orbit.mysql.transaction import Transaction
    from orbit.sandbox import MySQLServer

BUDGET_S = 10.0


@pytest.fixture
async def bench(mysql: MySQLServer) -> AsyncIterator[LaneBench]:
    async with lane_bench(mysql) as made:
        yield made


async def test_a_spent_budget_takes_back_what_was_done(bench: LaneBench) -> None:
    lane, gate = bench.lane(), Gate()

    async def work(transaction: Transaction) -> None:
        await transaction.execute(INSERT, {"id": "a"})
        await gate.stop()

    await lane.open()
    with pytest.raises(NotCommitted, match="the budget was spent") as caught:
        await lane.run(work, budget_s=1.0)
    assert (caught.value.errno, caught.value.kind, caught.value.stage) == (None, Kind.RETRY, Stage.WORKING)
    assert await lane.read(lambda tx: tx.fetch_one(COUNT), budget_s=BUDGET_S) == (0,)
    assert lane.tally == Tally(not_committed=1, opened=1)


@pytest.mark.parametrize("budget_s", [0.0, -1.0])
async def test_without_a_budget_nothing_is_started(bench: LaneBench, budget_s: float) -> None:
    lane = bench.lane()
    with pytest.raises(NotCommitted, match="the budget was spent") as caught:
        await lane.run(inserting("a"), budget_s=budget_s)
    assert (caught.value.kind, caught.value.stage) == (Kind.RETRY, Stage.OPENING)
    assert lane.tally == Tally(not_committed=1)


async def test_commit_is_not_started_when_the_budget_is_spent(bench: LaneBench) -> None:
    lane = bench.lane()

    async def work(transaction: Transaction) -> None:
        await transaction.execute(INSERT, {"id": "a"})
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return  # swallows the deadline

    await lane.open()
    with pytest.raises(NotCommitted, match="the budget was spent") as caught:
        await lane.run(work, budget_s=1.0)
    assert caught.value.kind is Kind.RETRY
    assert bench.ids() == []


async def test_a_timeout_of_the_works_own_is_a_verdict(bench: LaneBench) -> None:
    lane = bench.lane()

    async def work(transaction: Transaction) -> None:
        await transaction.execute(INSERT, {"id": "a"})
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await lane.run(work, budget_s=BUDGET_S)
    assert bench.ids() == []


@pytest.mark.parametrize("limit", ["statement_s", "budget"])
async def test_a_statement_that_takes_too_long_ends_in_time(bench: LaneBench, limit: str) -> None:
    holder, gate = bench.lane(), Gate()
    lane = bench.lane(replace(DEFAULT_TIMES, statement_s=1.0) if limit == "statement_s" else DEFAULT_TIMES)
    bench.sql("INSERT INTO t (id) VALUES ('hot')")

    async def work(transaction: Transaction) -> None:
        await transaction.execute(INSERT, {"id": "mine"})
        await transaction.execute(BUMP, {"id": "hot"})

    held = asyncio.create_task(holder.run(holding("hot", gate), budget_s=BUDGET_S))
    await gate.reached()
    await lane.open()
    with pytest.raises(NotCommitted) as caught:
        await lane.run(work, budget_s=1.0 if limit == "budget" else BUDGET_S)
    gate.open()
    await settled(held)
    reason = "no answer in time" if limit == "statement_s" else "the budget was spent"
    assert (caught.value.errno, caught.value.kind, caught.value.reason) == (None, Kind.RECONNECT, reason)
    assert lane.tally == Tally(not_committed=1, opened=1, dropped=1)
    assert "mine" not in bench.ids()


async def test_a_cancellation_outside_the_database_is_rolled_back_on_the_same_connection(bench: LaneBench) -> None:
    lane, gate = bench.lane(), Gate()

    async def work(transaction: Transaction) -> None:
        await transaction.execute(INSERT, {"id": "a"})
        await gate.stop()

    task = asyncio.create_task(lane.run(work, budget_s=BUDGET_S))
    await gate.reached()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await settled(task)
    assert lane.last_outcome is Outcome.NOT_COMMITTED
    assert await lane.read(lambda tx: tx.fetch_one(COUNT), budget_s=BUDGET_S) == (0,)
    assert lane.tally == Tally(not_committed=1, opened=1)


async def test_a_cancellation_inside_a_statement_drops_the_connection(bench: LaneBench) -> None:
    holder, lane, gate = bench.lane(), bench.lane(), Gate()
    bench.sql("INSERT INTO t (id) VALUES ('hot')")
    ids: list[int] = []

    async def work(transaction: Transaction) -> None:
        ids.append(transaction.connection_id)
        await transaction.execute(INSERT, {"id": "mine"})
        await transaction.execute(BUMP, {"id": "hot"})

    held = asyncio.create_task(holder.run(holding("hot", gate), budget_s=BUDGET_S))
    await gate.reached()
    waiting = asyncio.create_task(lane.run(work, budget_s=BUDGET_S))
    await until(lambda: bool(ids))
    await bench.waits_for_lock(ids[0])
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await settled(waiting)
    assert lane.last_outcome is Outcome.NOT_COMMITTED
    gate.open()
    await settled(held)
    await bench.gone(ids[0])
    assert bench.sql("SELECT id, v FROM t") == [("hot", 1)]
    await lane.run(work, budget_s=BUDGET_S)
    assert ids[0] != ids[1]


async def test_a_cancellation_that_the_work_swallows_in_a_statement_still_dooms_it(bench: LaneBench) -> None:
    holder, lane, gate = bench.lane(), bench.lane(), Gate()
    bench.sql("INSERT INTO t (id) VALUES ('hot')")
    ids: list[int] = []

    async def work(transaction: Transaction) -> None:
        ids.append(transaction.connection_id)
        with pytest.raises(asyncio.CancelledError):
            await transaction.execute(BUMP, {"id": "hot"})

    held = asyncio.create_task(holder.run(holding("hot", gate), budget_s=BUDGET_S))
    await gate.reached()
    waiting = asyncio.create_task(lane.run(work, budget_s=BUDGET_S))
    await until(lambda: bool(ids))
    await bench.waits_for_lock(ids[0])
    waiting.cancel()
    with pytest.raises(NotCommitted) as caught:
        await settled(waiting)
    gate.open()
    await settled(held)
    assert caught.value.kind is Kind.RECONNECT
    assert bench.sql("SELECT v FROM t") == [(1,)]

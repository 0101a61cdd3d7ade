"""Locks lost, statements and connections killed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from orbit.mysql.errors import CommitUnconfirmed, Kind, NotCommitted, Stage, StatementFailed, unconfirmed_behind
from orbit.mysql.lane import Outcome, Tally
from orbit.mysql.statement import Statement
from orbit.mysql.times import DEFAULT_TIMES
from tests.support.lanes import (
    BUMP,
    INSERT,
    Gate,
    LaneBench,
    holding,
    lane_bench,
    settled,
    until,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from orbit.mysql.transaction import Transaction
    from orbit.sandbox import MySQLServer

BUDGET_S = 10.0
SHORT_LOCKS = replace(DEFAULT_TIMES, row_lock_s=1)


@pytest.fixture
async def bench(mysql: MySQLServer) -> AsyncIterator[LaneBench]:
    async with lane_bench(mysql) as made:
        yield made


async def test_a_lock_wait_timeout_undoes_the_whole_transaction(bench: LaneBench) -> None:
    holder, lane, gate = bench.lane(), bench.lane(SHORT_LOCKS), Gate()
    bench.sql("INSERT INTO t (id) VALUES ('hot')")

    async def work(transaction: Transaction) -> None:
        await transaction.execute(INSERT, {"id": "mine"})
        await transaction.execute(BUMP, {"id": "hot"})

    held = asyncio.create_task(holder.run(holding("hot", gate), budget_s=BUDGET_S))
    await gate.reached()
    with pytest.raises(NotCommitted) as caught:
        await lane.run(work, budget_s=BUDGET_S)
    gate.open()
    await settled(held)
    assert (caught.value.errno, caught.value.kind) == (1205, Kind.RETRY)
    assert bench.sql("SELECT id, v FROM t") == [("hot", 1)]
    assert lane.tally.dropped == 0


async def test_a_deadlock_costs_one_transaction_and_never_half_of_it(bench: LaneBench) -> None:
    lanes = [bench.lane(), bench.lane()]
    bench.sql("INSERT INTO t (id) VALUES ('x'), ('y')")
    both = asyncio.Barrier(2)
    victims: list[tuple[str, int | None]] = []

    def work(first: str, second: str) -> Callable[[Transaction], Awaitable[None]]:
        async def crossing(transaction: Transaction) -> None:
            await transaction.execute(INSERT, {"id": f"by-{first}"})
            await transaction.execute(BUMP, {"id": first})
            await both.wait()
            try:
                await transaction.execute(BUMP, {"id": second})
            except StatementFailed as failure:
                victims.append((first, failure.errno))
                # 1213 has undone everything; this would run in a new transaction, and COMMIT would say OK.
                with pytest.raises(StatementFailed, match="an earlier statement failed"):
                    await transaction.execute(INSERT, {"id": "after"})

        return crossing

    endings = await asyncio.gather(
        lanes[0].run(work("x", "y"), budget_s=BUDGET_S),
        lanes[1].run(work("y", "x"), budget_s=BUDGET_S),
        return_exceptions=True,
    )
    ((victim, errno),) = victims
    assert errno == 1213
    survivor = "y" if victim == "x" else "x"
    failures = [ending for ending in endings if ending is not None]
    assert [str(failure) for failure in failures] == ["NotCommitted errno=1213 kind=retry stage=working"]
    assert bench.sql("SELECT id, v FROM t ORDER BY id") == [(f"by-{survivor}", 0), ("x", 1), ("y", 1)]


async def test_kill_query_undoes_the_transaction_and_keeps_the_connection(bench: LaneBench) -> None:
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
    bench.kill(ids[0], what="QUERY")
    with pytest.raises(NotCommitted) as caught:
        await settled(waiting)
    gate.open()
    await settled(held)
    assert (caught.value.errno, caught.value.kind) == (1317, Kind.RETRY)
    await lane.run(work, budget_s=BUDGET_S)
    assert ids[0] == ids[1]
    assert bench.sql("SELECT id, v FROM t ORDER BY id") == [("hot", 2), ("mine", 0)]


async def test_a_connection_killed_between_statements_is_replaced_for_the_next_transaction(bench: LaneBench) -> None:
    lane = bench.lane()
    ids: list[int] = []

    async def work(transaction: Transaction) -> None:
        ids.append(transaction.connection_id)
        await transaction.execute(INSERT, {"id": "a"})
        if len(ids) == 1:
            bench.kill(ids[0])
            await bench.gone(ids[0])
        await transaction.execute(INSERT, {"id": "b"})

    with pytest.raises(NotCommitted) as caught:
        await lane.run(work, budget_s=BUDGET_S)
    assert (caught.value.errno, caught.value.kind, caught.value.stage) == (2013, Kind.RECONNECT, Stage.WORKING)
    assert bench.ids() == []
    await lane.run(work, budget_s=BUDGET_S)
    assert ids[0] != ids[1]
    assert bench.ids() == ["a", "b"]
    assert lane.tally == Tally(committed=1, not_committed=1, opened=2, dropped=1)


async def test_commit_is_not_sent_on_a_link_that_is_known_to_be_gone(bench: LaneBench) -> None:
    lane = bench.lane()

    async def work(transaction: Transaction) -> None:
        await transaction.execute(INSERT, {"id": "a"})
        bench.kill(transaction.connection_id)
        await until(lambda: lane._connection is not None and lane._connection.lost)

    with pytest.raises(NotCommitted, match="the connection was lost before COMMIT") as caught:
        await lane.run(work, budget_s=BUDGET_S)
    assert (caught.value.errno, caught.value.kind) == (None, Kind.RECONNECT)
    assert lane.last_outcome is Outcome.NOT_COMMITTED
    assert bench.ids() == []


async def test_a_connection_that_died_while_idle_costs_nothing(bench: LaneBench) -> None:
    lane = bench.lane()
    ids: list[int] = []

    async def work(transaction: Transaction) -> None:
        ids.append(transaction.connection_id)
        await transaction.execute(INSERT, {"id": str(len(ids))})

    await lane.run(work, budget_s=BUDGET_S)
    bench.kill(ids[0])
    await until(lambda: lane._connection is not None and lane._connection.lost)
    await lane.run(work, budget_s=BUDGET_S)
    assert ids[0] != ids[1]
    assert bench.ids() == ["1", "2"]


async def test_a_connection_idle_for_too_long_is_replaced_before_the_transaction(bench: LaneBench) -> None:
    lane = bench.lane()
    ids = [await lane.read(_connection_id, budget_s=BUDGET_S)]
    lane._used_at -= DEFAULT_TIMES.idle_s + 1
    ids.append(await lane.read(_connection_id, budget_s=BUDGET_S))
    assert ids[0] != ids[1]
    await bench.gone(ids[0])
    assert lane.tally == Tally(opened=2)


async def _connection_id(transaction: Transaction) -> int:
    return transaction.connection_id


@pytest.mark.parametrize("ending", ["timeout", "kill", "cancel"])
async def test_ddl_without_its_ok_is_unconfirmed(bench: LaneBench, ending: str) -> None:
    holder, gate = bench.lane(), Gate()
    lane = bench.lane(replace(DEFAULT_TIMES, metadata_lock_s=1) if ending == "timeout" else DEFAULT_TIMES)
    bench.sql("INSERT INTO t (id) VALUES ('hot')")
    held = asyncio.create_task(holder.run(holding("hot", gate), budget_s=BUDGET_S))
    await gate.reached()
    connection_id = await lane.read(_connection_id, budget_s=BUDGET_S)
    task = asyncio.create_task(lane.define(Statement("ALTER TABLE t ADD COLUMN x INT"), budget_s=BUDGET_S))
    waits = "SELECT 1 FROM performance_schema.processlist WHERE id = %s AND state = 'Waiting for table metadata lock'"
    await until(lambda: bool(bench.sql(waits, connection_id)))
    if ending == "kill":
        bench.kill(connection_id)
    if ending == "cancel":
        task.cancel()
    with pytest.raises((CommitUnconfirmed, asyncio.CancelledError)) as caught:
        await settled(task)
    gate.open()
    await settled(held)
    unconfirmed = unconfirmed_behind(caught.value)
    assert unconfirmed is not None
    assert unconfirmed.errno == {"timeout": 1205, "kill": 2013, "cancel": None}[ending]
    assert (caught.value is unconfirmed) is (ending != "cancel")
    assert lane.last_outcome is Outcome.UNCONFIRMED
    assert lane.tally.dropped == 1

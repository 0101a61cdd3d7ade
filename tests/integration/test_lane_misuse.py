"""Works that do what a transaction does not allow are found out, and nothing of theirs is called a success."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from orbit.mysql.errors import Kind, NotCommitted, StatementFailed
from orbit.mysql.statement import Statement
from tests.support.lanes import (
    INSERT,
    Gate,
    LaneBench,
    inserting,
    lane_bench,
    settled,
    stopping_at,
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


async def test_ddl_inside_a_transaction_is_found_out_at_once(bench: LaneBench) -> None:
    lane = bench.lane()

    async def work(transaction: Transaction) -> None:
        await transaction.execute(INSERT, {"id": "a"})
        with pytest.raises(StatementFailed, match="the statement ended the transaction by itself"):
            await transaction.execute(Statement("CREATE TABLE u (id INT PRIMARY KEY)"))
        with pytest.raises(StatementFailed, match="an earlier statement failed"):
            await transaction.execute(INSERT, {"id": "b"})

    with pytest.raises(NotCommitted) as caught:
        await lane.run(work, budget_s=BUDGET_S)
    assert (caught.value.errno, caught.value.kind) == (None, Kind.DEFECT)
    assert bench.ids() == ["a"], "MySQL committed it by itself: the reason why this is an error and not a success"


@pytest.mark.parametrize("ddl", [None, "CREATE TABLE u (id INT PRIMARY KEY)", "SET @x = 1", "SELECT 1"])
async def test_commit_is_not_sent_when_no_transaction_is_open(bench: LaneBench, ddl: str | None) -> None:
    lane = bench.lane()
    # The last answer of the transaction before said "no transaction"; it must not be taken for this one's.
    await lane.run(inserting("before"), budget_s=BUDGET_S)

    async def work(transaction: Transaction) -> None:
        if ddl is not None:
            await transaction.execute(Statement(ddl))

    with pytest.raises(NotCommitted, match="no transaction was open at COMMIT") as caught:
        await lane.run(work, budget_s=BUDGET_S)
    assert caught.value.kind is Kind.DEFECT
    assert bench.ids() == ["before"]


async def test_no_second_statement_hides_behind_a_semicolon(bench: LaneBench) -> None:
    lane = bench.lane()
    with pytest.raises(NotCommitted) as caught:
        await lane.run(lambda tx: tx.execute(Statement("INSERT INTO t (id) VALUES ('a'); COMMIT")), budget_s=BUDGET_S)
    assert caught.value.errno == 1064
    assert bench.ids() == []


async def test_a_statement_with_several_results_is_refused(bench: LaneBench) -> None:
    lane = bench.lane()
    bench.sql("CREATE PROCEDURE p() BEGIN INSERT INTO t (id) VALUES ('a'); SELECT 1; END")
    with pytest.raises(NotCommitted, match="the statement had several results") as caught:
        await lane.run(lambda tx: tx.execute(Statement("CALL p()")), budget_s=BUDGET_S)
    assert caught.value.kind is Kind.DEFECT
    assert lane.tally.dropped == 1
    assert bench.ids() == []


async def test_a_procedure_that_commits_is_found_out(bench: LaneBench) -> None:
    lane = bench.lane()
    bench.sql("CREATE PROCEDURE p() COMMIT")

    async def work(transaction: Transaction) -> None:
        await transaction.execute(INSERT, {"id": "a"})
        await transaction.execute(Statement("CALL p()"))

    with pytest.raises(NotCommitted, match="the statement ended the transaction by itself"):
        await lane.run(work, budget_s=BUDGET_S)


async def test_literals_are_not_written_for_a_session_in_another_mode(bench: LaneBench) -> None:
    lane = bench.lane()

    async def work(transaction: Transaction) -> None:
        await transaction.execute(Statement("SET SESSION sql_mode = ''"))
        await transaction.execute(INSERT, {"id": "a"})

    with pytest.raises(NotCommitted, match="the session left NO_BACKSLASH_ESCAPES") as caught:
        await lane.run(work, budget_s=BUDGET_S)
    assert caught.value.kind is Kind.DEFECT
    assert bench.ids() == []


async def test_a_lane_makes_one_call_at_a_time(bench: LaneBench) -> None:
    lane, gate = bench.lane(), Gate()
    first = asyncio.create_task(lane.read(stopping_at(gate), budget_s=BUDGET_S))
    await gate.reached()
    with pytest.raises(RuntimeError, match="one call at a time"):
        await lane.run(inserting("a"), budget_s=BUDGET_S)
    with pytest.raises(RuntimeError, match="in use"):
        await lane.close()
    gate.open()
    await settled(first)


async def test_a_closed_lane_stays_closed(bench: LaneBench) -> None:
    lane = bench.lane()
    connection_id = await lane.read(_connection_id, budget_s=BUDGET_S)
    await lane.close()
    await lane.close()
    await bench.gone(connection_id)
    with pytest.raises(RuntimeError, match="closed"):
        await lane.run(inserting("a"), budget_s=BUDGET_S)


async def test_a_transaction_ends_with_its_work(bench: LaneBench) -> None:
    lane = bench.lane()
    kept: list[Transaction] = []

    async def work(transaction: Transaction) -> None:
        kept.append(transaction)
        await transaction.execute(INSERT, {"id": "a"})

    await lane.run(work, budget_s=BUDGET_S)
    with pytest.raises(RuntimeError, match="the transaction has ended"):
        await kept[0].execute(INSERT, {"id": "b"})


async def test_a_transaction_runs_one_statement_at_a_time(bench: LaneBench) -> None:
    lane = bench.lane()

    async def work(transaction: Transaction) -> None:
        first = asyncio.create_task(transaction.execute(INSERT, {"id": "a"}))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="one statement at a time"):
            await transaction.execute(INSERT, {"id": "b"})
        await first

    await lane.run(work, budget_s=BUDGET_S)
    assert bench.ids() == ["a"]


async def test_a_statement_that_outlives_its_work_is_not_committed(bench: LaneBench) -> None:
    lane = bench.lane()
    left: list[asyncio.Task[object]] = []

    async def work(transaction: Transaction) -> None:
        await transaction.execute(INSERT, {"id": "a"})
        left.append(asyncio.create_task(transaction.execute(Statement("SELECT SLEEP(5)"))))
        await asyncio.sleep(0)

    with pytest.raises(NotCommitted, match="the work ended before its statement") as caught:
        await lane.run(work, budget_s=BUDGET_S)
    assert caught.value.kind is Kind.DEFECT
    with pytest.raises(StatementFailed):
        await settled(left[0])
    assert lane.tally.dropped == 1
    assert bench.ids() == []


async def _connection_id(transaction: Transaction) -> int:
    return transaction.connection_id

"""A link that goes dark: nothing arrives any more and nobody says so. No call outlasts its deadlines."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from orbit.mysql.errors import CommitUnconfirmed, Kind, NotCommitted, Stage
from orbit.mysql.lane import Lane, Outcome, Tally
from orbit.mysql.statement import Statement
from orbit.mysql.times import DEFAULT_TIMES
from tests.support.lanes import (
    BUMP,
    COUNT,
    INSERT,
    PATIENCE_S,
    Gate,
    LaneBench,
    be_patient,
    inserting,
    lane_bench,
    proxied_lane,
    settled,
    until,
)
from toxiproxy import CutAfterStatement, DarkLink, End, MySQLProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orbit.mysql.transaction import Transaction
    from orbit.sandbox import MySQLServer

BUDGET_S = 10.0
SHORT_STATEMENT = replace(DEFAULT_TIMES, statement_s=1.0)


@pytest.fixture
async def bench(mysql: MySQLServer) -> AsyncIterator[LaneBench]:
    async with lane_bench(mysql) as made:
        yield made


async def _works_again(lane: Lane, proxy: MySQLProxy) -> None:
    proxy.heal()
    be_patient(lane)
    await lane.run(inserting("next"), budget_s=BUDGET_S)
    assert lane.last_outcome is Outcome.COMMITTED


class _Verdict(Exception):
    """A decision of the work's own."""


async def test_while_connecting(bench: LaneBench) -> None:
    async with proxied_lane(bench, replace(DEFAULT_TIMES, connect_s=0.3)) as (proxy, lane):
        armed = proxy.arm(DarkLink())
        with pytest.raises(NotCommitted, match="no answer in time") as caught:
            await lane.run(inserting("a"), budget_s=BUDGET_S)
        assert armed.fired
        assert (caught.value.kind, caught.value.stage) == (Kind.RECONNECT, Stage.OPENING)
        await _works_again(lane, proxy)


async def test_in_a_statement(bench: LaneBench) -> None:
    async with proxied_lane(bench, SHORT_STATEMENT) as (proxy, lane):
        armed = proxy.arm(DarkLink(after_statement=1))
        with pytest.raises(NotCommitted, match="no answer in time") as caught:
            await lane.run(inserting("a", "b"), budget_s=BUDGET_S)
        assert armed.fired
        assert (caught.value.kind, caught.value.stage) == (Kind.RECONNECT, Stage.WORKING)
        assert lane.tally == Tally(not_committed=1, opened=1, dropped=1)
        await _works_again(lane, proxy)


async def test_in_commit(bench: LaneBench) -> None:
    async with proxied_lane(bench, replace(DEFAULT_TIMES, commit_s=0.3)) as (proxy, lane):
        armed = proxy.arm(DarkLink(after_statement=1))
        with pytest.raises(CommitUnconfirmed) as caught:
            await lane.run(inserting("a"), budget_s=BUDGET_S)
        assert armed.fired
        assert caught.value.errno is None
        await _works_again(lane, proxy)


async def test_in_the_rollback_of_a_verdict(bench: LaneBench) -> None:
    async with proxied_lane(bench) as (proxy, lane):
        armed = proxy.arm(DarkLink(after_statement=1))

        async def work(transaction: Transaction) -> None:
            await transaction.execute(INSERT, {"id": "a"})
            raise _Verdict

        with pytest.raises(_Verdict):
            await lane.run(work, budget_s=BUDGET_S)
        assert armed.fired
        assert lane.tally == Tally(not_committed=1, opened=1, dropped=1)
        await _works_again(lane, proxy)


async def test_in_the_rollback_that_ends_a_read(bench: LaneBench) -> None:
    async with proxied_lane(bench) as (proxy, lane):
        armed = proxy.arm(DarkLink(after_statement=1))
        assert await lane.read(lambda tx: tx.fetch_one(COUNT), budget_s=BUDGET_S) == (0,)
        assert armed.fired
        assert lane.tally == Tally(opened=1, dropped=1)
        await _works_again(lane, proxy)


async def test_in_the_rollback_of_a_spent_budget(bench: LaneBench) -> None:
    async with proxied_lane(bench) as (proxy, lane):
        armed = proxy.arm(DarkLink(after_statement=1))

        async def work(transaction: Transaction) -> None:
            await transaction.execute(INSERT, {"id": "a"})
            await asyncio.Event().wait()

        await lane.open()
        with pytest.raises(NotCommitted, match="the budget was spent"):
            await lane.run(work, budget_s=1.0)
        assert armed.fired
        assert lane.tally.dropped == 1
        await _works_again(lane, proxy)


@pytest.mark.parametrize("cancellations", [1, 2])
async def test_in_the_rollback_of_a_cancellation(bench: LaneBench, cancellations: int) -> None:
    # The second cancellation ends what would otherwise take longer than the test.
    times = DEFAULT_TIMES if cancellations == 1 else replace(DEFAULT_TIMES, cleanup_s=3600.0)
    async with proxied_lane(bench, times) as (proxy, lane):
        armed, gate = proxy.arm(DarkLink(after_statement=1)), Gate()

        async def work(transaction: Transaction) -> None:
            kept.append(transaction)
            await transaction.execute(INSERT, {"id": "a"})
            await gate.stop()

        kept: list[Transaction] = []
        task = asyncio.create_task(lane.run(work, budget_s=BUDGET_S))
        await gate.reached()
        assert armed.fired
        task.cancel()
        if cancellations == 2:
            await until(lambda: kept[0]._ended)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await settled(task)
        assert lane.last_outcome is Outcome.NOT_COMMITTED
        assert lane.tally == Tally(not_committed=1, opened=1, dropped=1)
        await _works_again(lane, proxy)


@pytest.mark.parametrize("call", ["run", "read"])
async def test_a_cancellation_during_a_rollback_is_not_swallowed(bench: LaneBench, call: str) -> None:
    async with proxied_lane(bench, replace(DEFAULT_TIMES, cleanup_s=3600.0)) as (proxy, lane):
        armed = proxy.arm(DarkLink(after_statement=1))

        async def work(transaction: Transaction) -> None:
            kept.append(transaction)
            await transaction.execute(INSERT, {"id": "a"})
            if call == "run":
                raise _Verdict

        kept: list[Transaction] = []

        task = asyncio.create_task((lane.run if call == "run" else lane.read)(work, budget_s=BUDGET_S))
        # Nothing is awaited between the end of the work and the ROLLBACK.
        await until(lambda: bool(kept) and kept[0]._ended)
        assert armed.fired
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await settled(task)
        assert lane.tally.dropped == 1
        await _works_again(lane, proxy)


async def test_while_closing(bench: LaneBench) -> None:
    async with proxied_lane(bench) as (proxy, lane):
        proxy.arm(DarkLink(after_statement=1))
        with pytest.raises(_Verdict):
            await lane.read(_see_then_decide, budget_s=BUDGET_S)
        await lane.close()
        proxy.heal()


async def _see_then_decide(transaction: Transaction) -> None:
    await transaction.fetch(COUNT)
    raise _Verdict


async def test_with_more_to_send_than_the_link_takes(bench: LaneBench) -> None:
    """Nothing flushes the rest: what the lane dropped cannot arrive later."""
    async with proxied_lane(bench, SHORT_STATEMENT) as (proxy, lane):
        proxy.arm(DarkLink(after_statement=1))

        async def work(transaction: Transaction) -> None:
            await transaction.execute(INSERT, {"id": "a"})
            await transaction.fetch(Statement("SELECT LENGTH(%s)", ("text",)), {"text": "x" * 24_000_000})

        with pytest.raises(NotCommitted, match="no answer in time"):
            await lane.run(work, budget_s=BUDGET_S)
        await _works_again(lane, proxy)


async def test_a_vanished_clients_locks_are_freed_in_seconds(bench: LaneBench) -> None:
    """The server cannot see that the client is gone; the session's own short wait_timeout ends it."""
    bench.sql("INSERT INTO t (id) VALUES ('hot')")
    async with MySQLProxy(*bench.dsn.hosts[0]) as proxy:
        times = replace(SHORT_STATEMENT, wait_timeout_s=1, idle_s=0.5)
        vanishing = bench.lane(times, dsn=bench.dsn.with_host("127.0.0.1", proxy.port))
        armed = proxy.arm(DarkLink(after_statement=1))

        async def work(transaction: Transaction) -> None:
            await transaction.execute(BUMP, {"id": "hot"})
            await transaction.execute(INSERT, {"id": "a"})

        with pytest.raises(NotCommitted):
            await vanishing.run(work, budget_s=BUDGET_S)
        assert armed.fired
        waiting = bench.lane(replace(DEFAULT_TIMES, row_lock_s=10, statement_s=12.0))
        await waiting.run(lambda tx: tx.execute(BUMP, {"id": "hot"}), budget_s=PATIENCE_S)
        proxy.heal()
    assert bench.sql("SELECT id, v FROM t") == [("hot", 1)]


@pytest.mark.parametrize("end", [End.FIN, End.RST, End.SILENCE])
@pytest.mark.parametrize("after", [1, 2])
async def test_a_cut_between_statements_is_not_committed(bench: LaneBench, after: int, end: End) -> None:
    times = SHORT_STATEMENT if end is End.SILENCE else DEFAULT_TIMES
    async with proxied_lane(bench, times) as (proxy, lane):
        armed = proxy.arm(CutAfterStatement(after, end))
        with pytest.raises(NotCommitted) as caught:
            await lane.run(inserting("a", "b", "c"), budget_s=BUDGET_S)
        entry = await armed.wait(0)
        assert caught.value.errno == (None if end is End.SILENCE else 2013)
        assert caught.value.kind is Kind.RECONNECT
        if end is not End.SILENCE:
            assert entry.thread_id is not None
            await bench.gone(entry.thread_id)
        assert bench.ids() == []
        await lane.run(inserting("d", "e", "f"), budget_s=BUDGET_S)
        assert bench.ids() == ["d", "e", "f"]

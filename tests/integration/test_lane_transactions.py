"""What a lane promises about one transaction, on a real MySQL."""

from __future__ import annotations

import asyncio
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from orbit.mysql.errors import DuplicateKey, Kind, NotCommitted, Stage, StatementFailed
from orbit.mysql.lane import Outcome, Tally
from orbit.mysql.statement import Statement
from orbit.mysql.times import DEFAULT_TIMES
from tests.support.lanes import BUMP, COUNT, INSERT, Gate, LaneBench, inserting, lane_bench, settled, until

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


class _Verdict(Exception):
    """A decision of the work's own."""


async def test_run_commits_and_gives_what_the_work_returned(bench: LaneBench) -> None:
    lane = bench.lane()

    async def work(transaction: Transaction) -> str:
        done = await transaction.execute(INSERT, {"id": "a"})
        assert done.rowcount == 1
        assert bench.ids() == []
        return "value"

    assert await lane.run(work, budget_s=BUDGET_S) == "value"
    assert bench.ids() == ["a"]
    assert lane.last_outcome is Outcome.COMMITTED
    assert lane.tally == Tally(committed=1, opened=1)


async def test_a_verdict_passes_unchanged_after_the_rollback(bench: LaneBench) -> None:
    lane = bench.lane()
    verdict = _Verdict()

    async def work(transaction: Transaction) -> None:
        await transaction.execute(INSERT, {"id": "a"})
        raise verdict

    with pytest.raises(_Verdict) as caught:
        await lane.run(work, budget_s=BUDGET_S)
    assert caught.value is verdict
    assert lane.last_outcome is Outcome.NOT_COMMITTED
    assert await lane.read(lambda tx: tx.fetch_one(COUNT), budget_s=BUDGET_S) == (0,)
    assert lane.tally == Tally(not_committed=1, opened=1)


async def test_a_failed_statement_rolls_everything_back_even_if_the_work_swallows_it(bench: LaneBench) -> None:
    lane = bench.lane()

    async def work(transaction: Transaction) -> str:
        await transaction.execute(INSERT, {"id": "a"})
        with pytest.raises(StatementFailed) as caught:
            await transaction.execute(Statement("INSERT INTO absent VALUES (1)"))
        assert (caught.value.errno, caught.value.kind) == (1146, Kind.DEFECT)
        return "as if nothing had happened"

    with pytest.raises(NotCommitted) as caught:
        await lane.run(work, budget_s=BUDGET_S)
    assert (caught.value.errno, caught.value.kind, caught.value.stage) == (1146, Kind.DEFECT, Stage.WORKING)
    assert bench.ids() == []
    assert lane.tally == Tally(not_committed=1, opened=1)


async def test_after_a_failed_statement_nothing_more_is_sent(bench: LaneBench) -> None:
    lane = bench.lane()

    async def work(transaction: Transaction) -> None:
        with pytest.raises(StatementFailed):
            await transaction.execute(Statement("INSERT INTO absent VALUES (1)"))
        with pytest.raises(StatementFailed, match="an earlier statement failed") as caught:
            await transaction.execute(INSERT, {"id": "b"})
        assert caught.value.errno == 1146
        assert transaction.statements == 1

    with pytest.raises(NotCommitted):
        await lane.run(work, budget_s=BUDGET_S)
    assert bench.ids() == []


async def test_a_duplicate_key_is_one_only_where_it_is_expected(bench: LaneBench) -> None:
    lane = bench.lane()
    await lane.run(inserting("a"), budget_s=BUDGET_S)

    with pytest.raises(DuplicateKey):
        await lane.run(lambda tx: tx.execute(INSERT, {"id": "a"}, duplicate_ok=True), budget_s=BUDGET_S)
    assert lane.last_outcome is Outcome.NOT_COMMITTED
    with pytest.raises(NotCommitted) as caught:
        await lane.run(lambda tx: tx.execute(INSERT, {"id": "a"}), budget_s=BUDGET_S)
    assert (caught.value.errno, caught.value.kind) == (1062, Kind.DATA)


async def test_an_expected_duplicate_key_dooms_the_transaction_too(bench: LaneBench) -> None:
    lane = bench.lane()
    await lane.run(inserting("a"), budget_s=BUDGET_S)

    async def work(transaction: Transaction) -> None:
        await transaction.execute(INSERT, {"id": "b"})
        with pytest.raises(DuplicateKey):
            await transaction.execute(INSERT, {"id": "a"}, duplicate_ok=True)

    with pytest.raises(NotCommitted) as caught:
        await lane.run(work, budget_s=BUDGET_S)
    assert caught.value.errno == 1062
    assert bench.ids() == ["a"]


async def test_expecting_a_duplicate_hides_no_other_failure(bench: LaneBench) -> None:
    lane = bench.lane()
    with pytest.raises(NotCommitted) as caught:
        await lane.run(lambda tx: tx.execute(INSERT, {"id": "x" * 65}, duplicate_ok=True), budget_s=BUDGET_S)
    assert (caught.value.errno, caught.value.kind) == (1406, Kind.DATA)


async def test_a_lock_wait_timeout_undoes_the_whole_transaction(bench: LaneBench) -> None:
    holder, lane, gate = bench.lane(), bench.lane(SHORT_LOCKS), Gate()
    bench.sql("INSERT INTO t (id) VALUES ('hot')")

    async def hold(transaction: Transaction) -> None:
        await transaction.execute(BUMP, {"id": "hot"})
        await gate.stop()

    async def work(transaction: Transaction) -> None:
        await transaction.execute(INSERT, {"id": "mine"})
        await transaction.execute(BUMP, {"id": "hot"})

    holding = asyncio.create_task(holder.run(hold, budget_s=BUDGET_S))
    await gate.reached()
    with pytest.raises(NotCommitted) as caught:
        await lane.run(work, budget_s=BUDGET_S)
    gate.open()
    await settled(holding)
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

    async def hold(transaction: Transaction) -> None:
        await transaction.execute(BUMP, {"id": "hot"})
        await gate.stop()

    async def work(transaction: Transaction) -> None:
        ids.append(transaction.connection_id)
        await transaction.execute(INSERT, {"id": "mine"})
        await transaction.execute(BUMP, {"id": "hot"})

    holding = asyncio.create_task(holder.run(hold, budget_s=BUDGET_S))
    await gate.reached()
    waiting = asyncio.create_task(lane.run(work, budget_s=BUDGET_S))
    await until(lambda: bool(ids))
    await bench.waits_for_lock(ids[0])
    bench.kill(ids[0], what="QUERY")
    with pytest.raises(NotCommitted) as caught:
        await settled(waiting)
    gate.open()
    await settled(holding)
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
    lane = bench.lane(replace(DEFAULT_TIMES, idle_s=1e-9))
    ids = [await lane.read(_connection_id, budget_s=BUDGET_S) for _ in range(2)]
    assert ids[0] != ids[1]
    await bench.gone(ids[0])
    assert lane.tally == Tally(opened=2)


async def _connection_id(transaction: Transaction) -> int:
    return transaction.connection_id


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


async def test_a_transaction_that_only_reads_may_commit(bench: LaneBench) -> None:
    """aiomysql ignores the flags that end a result set; without them this would look like no transaction."""
    lane = bench.lane()
    assert await lane.run(lambda tx: tx.fetch_one(COUNT), budget_s=BUDGET_S) == (0,)
    assert lane.last_outcome is Outcome.COMMITTED


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


async def test_read_takes_everything_back(bench: LaneBench) -> None:
    lane = bench.lane()

    async def work(transaction: Transaction) -> int:
        await transaction.execute(INSERT, {"id": "a"})
        row = await transaction.fetch_one(COUNT)
        assert row is not None
        return int(row[0])

    assert await lane.read(work, budget_s=BUDGET_S) == 1
    assert bench.ids() == []
    assert lane.last_outcome is None
    assert lane.tally == Tally(opened=1)


async def test_each_statement_sees_what_is_committed_when_it_starts(bench: LaneBench) -> None:
    lane = bench.lane()

    async def work(transaction: Transaction) -> list[tuple[int, ...] | None]:
        before = await transaction.fetch_one(COUNT)
        bench.sql("INSERT INTO t (id) VALUES ('a')")
        return [before, await transaction.fetch_one(COUNT)]

    assert await lane.read(work, budget_s=BUDGET_S) == [(0,), (1,)]


async def test_a_query_for_one_row_refuses_several(bench: LaneBench) -> None:
    lane = bench.lane()
    bench.sql("INSERT INTO t (id) VALUES ('a'), ('b')")
    every = Statement("SELECT id FROM t ORDER BY id")
    assert await lane.read(lambda tx: tx.fetch(every), budget_s=BUDGET_S) == [("a",), ("b",)]
    with pytest.raises(LookupError):
        await lane.read(lambda tx: tx.fetch_one(every), budget_s=BUDGET_S)
    none = Statement("SELECT id FROM t WHERE FALSE")
    assert await lane.read(lambda tx: tx.fetch_one(none), budget_s=BUDGET_S) is None


async def test_an_update_counts_the_rows_that_matched(bench: LaneBench) -> None:
    lane = bench.lane()
    bench.sql("INSERT INTO t (id, v) VALUES ('a', 5), ('b', 5)")
    done = await lane.run(lambda tx: tx.execute(Statement("UPDATE t SET v = 5")), budget_s=BUDGET_S)
    assert done.rowcount == 2


async def test_an_upserts_verdict_comes_home_in_the_insert_id(bench: LaneBench) -> None:
    lane = bench.lane()
    upsert = Statement(
        "INSERT INTO t (id, v) VALUES (%s, %s) AS new ON DUPLICATE KEY UPDATE v = IF(LAST_INSERT_ID(7), new.v, t.v)",
        ("id", "v"),
    )
    first = await lane.run(lambda tx: tx.execute(upsert, {"id": "a", "v": 1}), budget_s=BUDGET_S)
    second = await lane.run(lambda tx: tx.execute(upsert, {"id": "a", "v": 2}), budget_s=BUDGET_S)
    assert (first.lastrowid, second.lastrowid) == (0, 7)


async def test_a_value_that_cannot_be_sent_dooms_the_transaction(bench: LaneBench) -> None:
    lane = bench.lane()

    async def work(transaction: Transaction) -> None:
        await transaction.execute(INSERT, {"id": "a"})
        with pytest.raises(StatementFailed, match="text with a lone surrogate"):
            await transaction.execute(INSERT, {"id": "\ud800"})

    with pytest.raises(NotCommitted) as caught:
        await lane.run(work, budget_s=BUDGET_S)
    assert (caught.value.errno, caught.value.kind) == (None, Kind.DATA)
    assert bench.ids() == []
    assert lane.tally.dropped == 0


async def test_literals_are_not_written_for_a_session_in_another_mode(bench: LaneBench) -> None:
    lane = bench.lane()

    async def work(transaction: Transaction) -> None:
        await transaction.execute(Statement("SET SESSION sql_mode = ''"))
        await transaction.execute(INSERT, {"id": "a"})

    with pytest.raises(NotCommitted, match="the session left NO_BACKSLASH_ESCAPES") as caught:
        await lane.run(work, budget_s=BUDGET_S)
    assert caught.value.kind is Kind.DEFECT
    assert bench.ids() == []


async def test_an_error_holds_nothing_of_the_servers_text(bench: LaneBench) -> None:
    lane = bench.lane()
    await lane.run(inserting("canary"), budget_s=BUDGET_S)
    for expected in (True, False):
        with pytest.raises((NotCommitted, DuplicateKey)) as caught:
            await lane.run(_inserting_the_canary(duplicate_ok=expected), budget_s=BUDGET_S)
        shown = "".join(traceback.format_exception(caught.value))
        assert "Duplicate entry" not in shown
        assert "pymysql" not in shown
        assert caught.value.__context__ is None


def _inserting_the_canary(*, duplicate_ok: bool) -> Callable[[Transaction], Awaitable[object]]:
    return lambda transaction: transaction.execute(INSERT, {"id": "canary"}, duplicate_ok=duplicate_ok)


async def test_a_spent_budget_takes_back_what_was_done(bench: LaneBench) -> None:
    lane, gate = bench.lane(), Gate()

    async def work(transaction: Transaction) -> None:
        await transaction.execute(INSERT, {"id": "a"})
        await gate.stop()

    with pytest.raises(NotCommitted, match="the budget was spent") as caught:
        await lane.run(work, budget_s=0.2)
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

    with pytest.raises(NotCommitted, match="the budget was spent") as caught:
        await lane.run(work, budget_s=0.2)
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
    lane = bench.lane(replace(DEFAULT_TIMES, statement_s=0.2) if limit == "statement_s" else DEFAULT_TIMES)
    bench.sql("INSERT INTO t (id) VALUES ('hot')")

    async def hold(transaction: Transaction) -> None:
        await transaction.execute(BUMP, {"id": "hot"})
        await gate.stop()

    async def work(transaction: Transaction) -> None:
        await transaction.execute(INSERT, {"id": "mine"})
        await transaction.execute(BUMP, {"id": "hot"})

    holding = asyncio.create_task(holder.run(hold, budget_s=BUDGET_S))
    await gate.reached()
    with pytest.raises(NotCommitted) as caught:
        await lane.run(work, budget_s=0.2 if limit == "budget" else BUDGET_S)
    gate.open()
    await settled(holding)
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

    async def hold(transaction: Transaction) -> None:
        await transaction.execute(BUMP, {"id": "hot"})
        await gate.stop()

    async def work(transaction: Transaction) -> None:
        ids.append(transaction.connection_id)
        await transaction.execute(INSERT, {"id": "mine"})
        await transaction.execute(BUMP, {"id": "hot"})

    holding = asyncio.create_task(holder.run(hold, budget_s=BUDGET_S))
    await gate.reached()
    waiting = asyncio.create_task(lane.run(work, budget_s=BUDGET_S))
    await until(lambda: bool(ids))
    await bench.waits_for_lock(ids[0])
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await settled(waiting)
    assert lane.last_outcome is Outcome.NOT_COMMITTED
    gate.open()
    await settled(holding)
    await bench.gone(ids[0])
    assert bench.sql("SELECT id, v FROM t") == [("hot", 1)]
    await lane.run(work, budget_s=BUDGET_S)
    assert ids[0] != ids[1]


async def test_a_cancellation_that_the_work_swallows_in_a_statement_still_dooms_it(bench: LaneBench) -> None:
    holder, lane, gate = bench.lane(), bench.lane(), Gate()
    bench.sql("INSERT INTO t (id) VALUES ('hot')")
    ids: list[int] = []

    async def hold(transaction: Transaction) -> None:
        await transaction.execute(BUMP, {"id": "hot"})
        await gate.stop()

    async def work(transaction: Transaction) -> None:
        ids.append(transaction.connection_id)
        with pytest.raises(asyncio.CancelledError):
            await transaction.execute(BUMP, {"id": "hot"})

    holding = asyncio.create_task(holder.run(hold, budget_s=BUDGET_S))
    await gate.reached()
    waiting = asyncio.create_task(lane.run(work, budget_s=BUDGET_S))
    await until(lambda: bool(ids))
    await bench.waits_for_lock(ids[0])
    waiting.cancel()
    with pytest.raises(NotCommitted) as caught:
        await settled(waiting)
    gate.open()
    await settled(holding)
    assert caught.value.kind is Kind.RECONNECT
    assert bench.sql("SELECT v FROM t") == [(1,)]


async def test_a_lane_makes_one_call_at_a_time(bench: LaneBench) -> None:
    lane, gate = bench.lane(), Gate()
    first = asyncio.create_task(lane.read(lambda _: gate.stop(), budget_s=BUDGET_S))
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


async def test_define_runs_one_ddl_statement(bench: LaneBench) -> None:
    lane = bench.lane()
    await lane.define(Statement("CREATE TABLE u (id INT PRIMARY KEY)"), budget_s=BUDGET_S)
    assert lane.last_outcome is Outcome.COMMITTED
    assert bench.sql("SELECT COUNT(*) FROM u") == [(0,)]


@pytest.mark.parametrize(
    ("ddl", "errno", "kind"),
    [
        ("CREATE TABLE t (id INT PRIMARY KEY)", 1050, Kind.DEFECT),
        ("CREATE TABEL u (id INT)", 1064, Kind.DEFECT),
        ("CREATE VIEW w AS SELECT 1", 1142, Kind.CONFIGURATION),
    ],
)
async def test_ddl_that_the_server_refused_is_not_committed(bench: LaneBench, ddl: str, errno: int, kind: Kind) -> None:
    lane = bench.lane()
    with pytest.raises(NotCommitted) as caught:
        await lane.define(Statement(ddl), budget_s=BUDGET_S)
    assert (caught.value.errno, caught.value.kind) == (errno, kind)
    assert lane.last_outcome is Outcome.NOT_COMMITTED

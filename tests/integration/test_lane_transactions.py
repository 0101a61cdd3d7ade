"""What a lane promises about one transaction, on a real MySQL."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

import pytest

from orbit.mysql.errors import DuplicateKey, Kind, NotCommitted, Stage, StatementFailed
from orbit.mysql.lane import Outcome, Tally
from orbit.mysql.statement import Statement
from tests.support.lanes import (
    COUNT,
    INSERT,
    LaneBench,
    inserting,
    lane_bench,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from orbit.mysql.transaction import Transaction
    from orbit.sandbox import MySQLServer

BUDGET_S = 10.0


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


async def test_a_transaction_that_only_reads_may_commit(bench: LaneBench) -> None:
    """aiomysql ignores the flags that end a result set; without them this would look like no transaction."""
    lane = bench.lane()
    assert await lane.run(lambda tx: tx.fetch_one(COUNT), budget_s=BUDGET_S) == (0,)
    assert lane.last_outcome is Outcome.COMMITTED


async def test_read_takes_everything_back(bench: LaneBench) -> None:
    lane = bench.lane()

    async def work(transaction: Transaction) -> int:
        await transaction.execute(INSERT, {"id": "a"})
        row = await transaction.fetch_one(COUNT)
        assert row is not None
        return int(row[0])

    await lane.run(inserting("before"), budget_s=BUDGET_S)
    assert await lane.read(work, budget_s=BUDGET_S) == 2
    assert bench.ids() == ["before"]
    assert lane.last_outcome is None
    assert lane.tally == Tally(committed=1, opened=1)


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

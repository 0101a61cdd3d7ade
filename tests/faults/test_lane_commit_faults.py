"""COMMIT that meets a fault: whatever happens to it, the caller hears "confirmed" only where the OK packet was read."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from orbit.mysql.errors import CommitUnconfirmed, DuplicateKey, Kind, NotCommitted, unconfirmed_behind
from orbit.mysql.lane import Lane, Outcome, Tally
from orbit.mysql.pool import LanePool
from orbit.mysql.statement import Statement
from orbit.mysql.times import DEFAULT_TIMES
from tests.support.lanes import (
    INSERT,
    PATIENCE_S,
    LaneBench,
    be_patient,
    closing,
    inserting,
    lane_bench,
    proxied_lane,
    settled,
    until,
)
from toxiproxy import (
    CutAfterCommit,
    CutBeforeCommit,
    DelayCommitOk,
    DropCommitOk,
    End,
    Fault,
    HoldCommit,
    MySQLProxy,
    Point,
    ReplaceCommitOk,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orbit.mysql.transaction import Transaction
    from orbit.sandbox import MySQLServer
    from toxiproxy import Entry

BUDGET_S = 10.0
HASTY = replace(DEFAULT_TIMES, commit_s=0.3)
"""For answers that will not come."""


@pytest.fixture
async def bench(mysql: MySQLServer) -> AsyncIterator[LaneBench]:
    async with lane_bench(mysql) as made:
        yield made


async def _goes_on_with_a_new_connection(lane: Lane, proxy: MySQLProxy, old: int) -> None:
    """The connection of an unconfirmed COMMIT is dropped, not reused."""
    tally = lane.tally
    assert (tally.opened, tally.dropped, tally.unconfirmed) == (1, 1, 1)
    number = proxy.connection_of(old)
    await proxy.journal.wait_for(lambda entry: (entry.connection, entry.point) == (number, Point.CLIENT_CLOSED), 15)
    commands = len(proxy.journal.at(Point.COMMAND, Point.COMMIT, connection=number))
    be_patient(lane)
    await lane.run(inserting("next"), budget_s=BUDGET_S)
    assert lane.last_outcome is Outcome.COMMITTED
    assert (tally.opened, tally.dropped) == (2, 1)
    assert len(proxy.journal.at(Point.COMMAND, Point.COMMIT, connection=number)) == commands


@pytest.mark.parametrize(
    ("fault", "errno"),
    [
        (DropCommitOk(End.FIN), 2013),
        (DropCommitOk(End.RST), 2013),
        (DropCommitOk(End.SILENCE), None),
        *((DropCommitOk(End.RST, keep_bytes=kept), 2013) for kept in range(1, 11)),
        (CutAfterCommit(End.RST), 2013),
        (CutAfterCommit(End.FIN), 2013),
        # An error packet proves nothing: these come from a COMMIT that is durable.
        *((ReplaceCommitOk(errno), errno) for errno in (1180, 1205, 1213, 1290, 1317, 1598)),
    ],
    ids=repr,
)
async def test_a_commit_that_was_done_and_not_confirmed_is_unconfirmed(
    bench: LaneBench, fault: Fault, errno: int | None
) -> None:
    async with proxied_lane(bench, HASTY if errno is None else DEFAULT_TIMES) as (proxy, lane):
        armed = proxy.arm(fault)
        with pytest.raises(CommitUnconfirmed) as caught:
            await lane.run(inserting("a", "b"), budget_s=BUDGET_S)
        assert caught.value.connection_id == (await armed.wait(PATIENCE_S)).thread_id
        assert caught.value.errno == errno
        assert caught.value.__context__ is None
        assert lane.last_outcome is Outcome.UNCONFIRMED
        await until(lambda: bench.ids() == ["a", "b"])
        await _goes_on_with_a_new_connection(lane, proxy, caught.value.connection_id)


@pytest.mark.parametrize(("end", "errno"), [(End.FIN, 2013), (End.RST, 2013), (End.SILENCE, None)])
async def test_a_commit_that_never_arrived_is_unconfirmed_as_well(
    bench: LaneBench, end: End, errno: int | None
) -> None:
    async with proxied_lane(bench, HASTY if errno is None else DEFAULT_TIMES) as (proxy, lane):
        armed = proxy.arm(CutBeforeCommit(end))
        with pytest.raises(CommitUnconfirmed) as caught:
            await lane.run(inserting("a"), budget_s=BUDGET_S)
        assert armed.fired
        assert caught.value.errno == errno
        assert lane.last_outcome is Outcome.UNCONFIRMED
        await _goes_on_with_a_new_connection(lane, proxy, caught.value.connection_id)
        if end is not End.SILENCE:
            await bench.gone(caught.value.connection_id)
        assert bench.ids() == ["next"]


@pytest.mark.parametrize(("commit_s", "budget_s"), [(0.3, 3600.0), (3600.0, 1.0)])
async def test_a_commit_without_an_answer_ends_in_time_and_may_still_be_done_later(
    bench: LaneBench, commit_s: float, budget_s: float
) -> None:
    """The row is not there when the lane gives up, and is there a moment later: to look proves nothing."""
    release = asyncio.Event()
    async with MySQLProxy(*bench.dsn.hosts[0]) as proxy, asyncio.timeout(PATIENCE_S):
        lane = bench.lane(replace(DEFAULT_TIMES, commit_s=commit_s), dsn=bench.dsn.with_host("127.0.0.1", proxy.port))
        await lane.open()
        held = proxy.arm(HoldCommit(release))
        with pytest.raises(CommitUnconfirmed) as caught:
            await lane.run(inserting("a"), budget_s=budget_s)
        assert caught.value.errno is None
        assert bench.ids() == []
        release.set()
        await held.wait_finished(PATIENCE_S)
        assert bench.ids() == ["a"]


async def test_only_the_same_transaction_again_decides(bench: LaneBench) -> None:
    """While the old COMMIT is on its way the new INSERT waits for it: still in doubt. Then it meets the row."""
    release = asyncio.Event()
    async with proxied_lane(bench, HASTY) as (proxy, lane):
        held = proxy.arm(HoldCommit(release))
        with pytest.raises(CommitUnconfirmed):
            await lane.run(inserting("a"), budget_s=BUDGET_S)
        again = bench.lane(replace(DEFAULT_TIMES, row_lock_s=1))
        with pytest.raises(NotCommitted) as caught:
            await again.run(lambda tx: tx.execute(INSERT, {"id": "a"}, duplicate_ok=True), budget_s=BUDGET_S)
        assert (caught.value.errno, caught.value.kind) == (1205, Kind.RETRY)
        release.set()
        await held.wait_finished(PATIENCE_S)
        with pytest.raises(DuplicateKey):
            await again.run(lambda tx: tx.execute(INSERT, {"id": "a"}, duplicate_ok=True), budget_s=BUDGET_S)


async def test_an_answer_that_comes_too_late_is_read_by_nobody(bench: LaneBench) -> None:
    release = asyncio.Event()
    async with proxied_lane(bench, HASTY) as (proxy, lane):
        delayed = proxy.arm(DelayCommitOk(release))
        with pytest.raises(CommitUnconfirmed):
            await lane.run(inserting("a"), budget_s=BUDGET_S)
        release.set()
        await delayed.wait_finished(PATIENCE_S)
        be_patient(lane)
        assert await lane.read(lambda tx: tx.fetch(Statement("SELECT 'mine'")), budget_s=BUDGET_S) == [("mine",)]
        assert bench.ids() == ["a"]


@pytest.mark.parametrize("fault", [HoldCommit, DropCommitOk], ids=["on its way", "done"])
async def test_a_cancellation_inside_commit_passes_on_and_is_recorded_as_unconfirmed(
    bench: LaneBench, fault: type[Fault]
) -> None:
    release = asyncio.Event()
    async with proxied_lane(bench) as (proxy, lane):
        armed = proxy.arm(HoldCommit(release) if fault is HoldCommit else DropCommitOk(End.SILENCE))
        task = asyncio.create_task(lane.run(inserting("a"), budget_s=BUDGET_S))
        await armed.wait(PATIENCE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await settled(task)
        unconfirmed = unconfirmed_behind(caught.value)
        assert unconfirmed is caught.value.__cause__
        assert unconfirmed is not None
        assert lane.last_outcome is Outcome.UNCONFIRMED
        release.set()
        await until(lambda: bench.ids() == ["a"])
        await _goes_on_with_a_new_connection(lane, proxy, unconfirmed.connection_id)


async def test_a_timeout_of_the_callers_own_leaves_the_unconfirmed_commit_visible(bench: LaneBench) -> None:
    async with proxied_lane(bench) as (proxy, lane):
        armed = proxy.arm(DropCommitOk(End.SILENCE))

        async def within_a_limit() -> None:
            async with asyncio.timeout(PATIENCE_S) as limit:
                limits.append(limit)
                await lane.run(inserting("a"), budget_s=BUDGET_S)

        limits: list[asyncio.Timeout] = []
        task = asyncio.create_task(within_a_limit())
        await armed.wait(PATIENCE_S)
        limits[0].reschedule(asyncio.get_running_loop().time())
        with pytest.raises(TimeoutError) as caught:
            await settled(task)
        assert unconfirmed_behind(caught.value) is not None
        assert lane.last_outcome is Outcome.UNCONFIRMED


class _Canceller:
    """Cancels a task at the n-th line of a proxy's journal: no sleep, no guess."""

    def __init__(self, at: int) -> None:
        self.task: asyncio.Task[None] | None = None
        self.entry: Entry | None = None
        self._left = at

    def __call__(self, entry: Entry) -> None:
        self._left -= 1
        if self._left == 0 and self.task is not None:
            self.entry = entry
            self.task.cancel()


async def test_a_cancellation_at_any_point_has_the_outcome_of_its_stage(bench: LaneBench) -> None:
    outcomes: list[tuple[Point, Outcome | None]] = []
    for at in range(1, 40):
        canceller = _Canceller(at)
        row = f"row-{at:02}"
        async with MySQLProxy(*bench.dsn.hosts[0], on_entry=canceller) as proxy:
            lane = bench.lane(dsn=bench.dsn.with_host("127.0.0.1", proxy.port))
            canceller.task = asyncio.create_task(lane.run(inserting(row, row + "-b"), budget_s=BUDGET_S))
            try:
                await settled(canceller.task)
            except asyncio.CancelledError as cancelled:
                behind = unconfirmed_behind(cancelled)
            else:
                break
            assert canceller.entry is not None
            assert lane.last_outcome is (Outcome.UNCONFIRMED if behind else Outcome.NOT_COMMITTED)
            outcomes.append((canceller.entry.point, lane.last_outcome))
            if canceller.entry.thread_id is not None:
                await bench.gone(canceller.entry.thread_id)
            there = [found for found in bench.ids() if found.startswith(row)]
            assert there in ([], [row, row + "-b"])
            if behind is None:
                assert there == []
            if canceller.entry.point is Point.COMMIT_OK:
                assert there == [row, row + "-b"]
            await lane.run(inserting(row + "-after"), budget_s=BUDGET_S)
            await lane.close()
    else:
        raise AssertionError("no run came through without its cancellation")
    unconfirmed = {point for point, outcome in outcomes if outcome is Outcome.UNCONFIRMED}
    assert unconfirmed == {Point.COMMIT, Point.COMMIT_OK}
    assert {point for point, outcome in outcomes if outcome is Outcome.NOT_COMMITTED} == {
        Point.ACCEPTED,
        Point.GREETING,
        Point.LOGIN,
        Point.COMMAND,
        Point.REPLY,
    }


async def test_run_again_does_not_repeat_an_unconfirmed_commit(bench: LaneBench) -> None:
    attempts = 0

    async def work(transaction: Transaction) -> None:
        nonlocal attempts
        attempts += 1
        await transaction.execute(INSERT, {"id": str(attempts)})

    async with (
        MySQLProxy(*bench.dsn.hosts[0]) as proxy,
        closing(LanePool(bench.dsn.with_host("127.0.0.1", proxy.port), 2, name="test")) as pool,
    ):
        armed = proxy.arm(DropCommitOk(End.RST))
        with pytest.raises(CommitUnconfirmed):
            await pool.run_again(work, budget_s=BUDGET_S)
        assert armed.fired
        assert attempts == 1
        assert pool.tally == Tally(unconfirmed=1, opened=1, dropped=1)


async def test_two_statements_are_three_round_trips(bench: LaneBench) -> None:
    async with proxied_lane(bench) as (proxy, lane):
        await lane.open()
        assert proxy.round_trips(1) == 1, "one SET for the whole session"
        await lane.run(inserting("a", "b"), budget_s=BUDGET_S)
        assert proxy.round_trips(1) == 1 + 3
        await lane.read(lambda tx: tx.fetch(Statement("SELECT id FROM t")), budget_s=BUDGET_S)
        assert proxy.round_trips(1) == 1 + 3 + 2
        assert lane.tally == Tally(committed=1, opened=1)


async def test_a_warning_costs_no_round_trip(bench: LaneBench) -> None:
    async with proxied_lane(bench) as (proxy, lane):
        await lane.run(inserting("a"), budget_s=BUDGET_S)
        before = proxy.round_trips(1)
        noisy = Statement("INSERT IGNORE INTO t (id) VALUES ('a')")
        await lane.run(lambda tx: tx.execute(noisy), budget_s=BUDGET_S)
        assert proxy.round_trips(1) == before + 2

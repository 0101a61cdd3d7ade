"""Several callers on few connections."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from orbit.mysql.errors import Kind, NotCommitted, Stage
from orbit.mysql.lane import Lane, Tally
from orbit.mysql.pool import LanePool
from orbit.mysql.statement import Statement
from tests.support.lanes import (
    COUNT,
    INSERT,
    PATIENCE_S,
    Gate,
    LaneBench,
    closing,
    holding,
    inserting,
    lane_bench,
    settled,
    stopping_at,
    until,
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


@pytest.fixture
async def pool(bench: LaneBench) -> AsyncIterator[LanePool]:
    made = LanePool(bench.dsn, 2, name="test")
    yield made
    await made.close()


async def test_no_more_calls_run_at_once_than_there_are_lanes(pool: LanePool, bench: LaneBench) -> None:
    running = most = started = 0
    together = asyncio.Event()

    async def work(transaction: Transaction) -> None:
        nonlocal running, most, started
        running += 1
        started += 1
        most = max(most, running)
        name = str(started)
        if running == 2:
            together.set()
        # The first waits for a second: without lanes for both it would wait for ever.
        await together.wait()
        await transaction.execute(INSERT, {"id": name})
        running -= 1

    await asyncio.gather(*(pool.run(work, budget_s=BUDGET_S) for _ in range(12)))
    assert most == 2
    assert len(bench.ids()) == 12
    assert pool.tally == Tally(committed=12, opened=2)


async def test_lanes_are_given_in_the_order_of_asking(pool: LanePool) -> None:
    gates = [Gate(), Gate()]
    order: list[int] = []
    held = [asyncio.create_task(pool.read(stopping_at(gate), budget_s=BUDGET_S)) for gate in gates]
    for gate in gates:
        await gate.reached()

    async def note(number: int) -> None:
        async def work(_: Transaction) -> None:
            order.append(number)

        await pool.read(work, budget_s=BUDGET_S)

    waiting = []
    for number in range(5):
        waiting.append(asyncio.create_task(note(number)))
        await asyncio.sleep(0)
    gates[0].open()
    for task in waiting:
        await settled(task)
    gates[1].open()
    for task in held:
        await settled(task)
    assert order == [0, 1, 2, 3, 4]


async def test_waiting_for_a_lane_counts_against_the_budget(pool: LanePool) -> None:
    gates = [Gate(), Gate()]
    held = [asyncio.create_task(pool.read(stopping_at(gate), budget_s=BUDGET_S)) for gate in gates]
    for gate in gates:
        await gate.reached()
    with pytest.raises(NotCommitted, match="no lane was free in time") as caught:
        await pool.run(inserting("a"), budget_s=0.05)
    assert (caught.value.kind, caught.value.stage) == (Kind.RETRY, Stage.OPENING)
    for gate, task in zip(gates, held, strict=True):
        gate.open()
        await settled(task)
    await pool.run(inserting("a"), budget_s=BUDGET_S)


async def test_the_time_waited_for_a_lane_is_gone_from_the_budget(
    bench: LaneBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets: list[float] = []
    run = Lane.run

    async def noting(lane: Lane, work: Callable[[Transaction], Awaitable[object]], *, budget_s: float) -> object:
        budgets.append(budget_s)
        return await run(lane, work, budget_s=budget_s)

    monkeypatch.setattr(Lane, "run", noting)
    clock, gate = asyncio.get_running_loop().time, Gate()
    async with closing(LanePool(bench.dsn, 1, name="test")) as pool:
        held = asyncio.create_task(pool.read(stopping_at(gate), budget_s=BUDGET_S))
        await gate.reached()
        waiting = asyncio.create_task(pool.run(inserting("a"), budget_s=BUDGET_S))
        await asyncio.sleep(0)
        asked_at = clock()
        await until(lambda: clock() > asked_at)
        waited_s = clock() - asked_at
        gate.open()
        await settled(held)
        await settled(waiting)
    assert budgets[0] <= BUDGET_S - waited_s


async def test_a_cancelled_wait_leaves_its_turn_to_the_next(pool: LanePool, bench: LaneBench) -> None:
    gates = [Gate(), Gate()]
    held = [asyncio.create_task(pool.read(stopping_at(gate), budget_s=BUDGET_S)) for gate in gates]
    for gate in gates:
        await gate.reached()
    impatient = asyncio.create_task(pool.run(inserting("never"), budget_s=BUDGET_S))
    await asyncio.sleep(0)
    patient = asyncio.create_task(pool.run(inserting("a"), budget_s=BUDGET_S))
    await asyncio.sleep(0)
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await settled(impatient)
    for gate, task in zip(gates, held, strict=True):
        gate.open()
        await settled(task)
    await settled(patient)
    assert bench.ids() == ["a"]


async def test_run_again_repeats_what_lost_its_connection_or_a_race(pool: LanePool, bench: LaneBench) -> None:
    bench.sql("INSERT INTO t (id) VALUES ('hot')")
    other, gate, attempts = bench.lane(), Gate(), 0
    held = asyncio.create_task(other.run(holding("hot", gate), budget_s=BUDGET_S))
    await gate.reached()

    async def work(transaction: Transaction) -> int:
        nonlocal attempts
        attempts += 1
        await transaction.execute(INSERT, {"id": "a"})
        if attempts == 1:
            bench.kill(transaction.connection_id)
        if attempts == 3:
            gate.open()
            await settled(held)
        await transaction.fetch(Statement("SELECT v FROM t WHERE id = 'hot' FOR UPDATE NOWAIT"))
        return attempts

    assert await pool.run_again(work, budget_s=PATIENCE_S) == 3
    assert bench.ids() == ["a", "hot"]
    assert (pool.tally.not_committed, pool.tally.committed) == (2, 1)


async def test_run_again_does_not_repeat_what_will_fail_again(pool: LanePool) -> None:
    attempts = 0

    async def work(transaction: Transaction) -> None:
        nonlocal attempts
        attempts += 1
        await transaction.execute(INSERT, {"id": "x" * 65})

    with pytest.raises(NotCommitted) as caught:
        await pool.run_again(work, budget_s=BUDGET_S)
    assert (caught.value.errno, caught.value.kind) == (1406, Kind.DATA)
    assert attempts == 1


async def test_run_again_gives_up_inside_its_budget(pool: LanePool, bench: LaneBench) -> None:
    attempts = 0

    async def work(transaction: Transaction) -> None:
        nonlocal attempts
        attempts += 1
        await transaction.execute(INSERT, {"id": "a"})
        bench.kill(transaction.connection_id)
        await transaction.execute(INSERT, {"id": "b"})

    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(NotCommitted) as caught:
            await pool.run_again(work, budget_s=0.5)
    assert caught.value.kind in {Kind.RECONNECT, Kind.RETRY}
    assert attempts > 1
    assert bench.ids() == []


async def test_a_closed_pool_closes_lanes_as_they_come_back(bench: LaneBench) -> None:
    gate = Gate()
    ids: list[int] = []

    async def work(transaction: Transaction) -> tuple[int, ...] | None:
        ids.append(transaction.connection_id)
        await gate.stop()
        return await transaction.fetch_one(COUNT)

    async with closing(LanePool(bench.dsn, 2, name="test")) as pool:
        task = asyncio.create_task(pool.read(work, budget_s=BUDGET_S))
        await gate.reached()
        await pool.close()
        with pytest.raises(RuntimeError, match="the pool is closed"):
            await pool.run(inserting("a"), budget_s=BUDGET_S)
        gate.open()
        assert await settled(task) == (0,)
        await bench.gone(ids[0])


async def test_a_pool_has_at_least_one_lane(bench: LaneBench) -> None:
    with pytest.raises(ValueError, match="at least one lane"):
        LanePool(bench.dsn, 0, name="test")

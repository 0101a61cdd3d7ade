"""The sweeper's loop: it outlives its database's outages, says so once, and keeps nodes apart."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from orbit.mysql.dsn import DSN
from orbit.mysql.errors import CommitUnconfirmed, DatabaseError, Kind, NotCommitted, Stage
from orbit.mysql.pool import LanePool
from orbit.protocol.limits import Limits
from orbit.server.parts import Platform
from orbit.server.sweep import Sweeper
from orbit.server.wake import Wake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEADLINE_S = 10.0


class Scripted(Sweeper):
    """A sweeper whose passes end as the script says."""

    def __init__(self, outcomes: list[int | DatabaseError], draw: Callable[[], float], limits: Limits) -> None:
        # Never connected: a pass of the script needs no database.
        pool = LanePool(DSN.parse("mysql://nobody:none@127.0.0.1:1/none"), 1, name="unused")
        super().__init__(Platform(pool, Wake(), limits), draw=draw)
        self.outcomes: Iterator[int | DatabaseError] = iter(outcomes)

    async def sweep_once(self) -> int:
        outcome = next(self.outcomes)
        if isinstance(outcome, DatabaseError):
            raise outcome
        return outcome


async def test_an_outage_is_told_once_and_so_is_its_end() -> None:
    gone = NotCommitted(2013, Kind.RECONNECT, Stage.WORKING)
    outcomes: list[int | DatabaseError] = [1, gone, CommitUnconfirmed(2013, 7), gone, 2, 3, gone, 4]
    sweeper = Scripted(outcomes, lambda: 0.0, Limits(node_poll_s=0.001))
    sweeper.swept.listen()

    with capture_logs() as logs:
        running = asyncio.create_task(sweeper.run())
        counts = [(await sweeper.swept.wait(DEADLINE_S))["count"] for _ in range(4)]
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    assert counts == [1, 2, 3, 4]
    assert [line["event"] for line in logs] == ["sweeping fails", "sweeping works again"] * 2
    assert (logs[0]["error"], logs[0]["errno"], logs[0]["kind"]) == ("NotCommitted", 2013, Kind.RECONNECT)


async def test_a_defect_ends_the_loop_and_is_not_swallowed() -> None:
    sweeper = Scripted([], lambda: 0.0, Limits(node_poll_s=0.001))

    with pytest.raises(RuntimeError):
        # next() on the exhausted script: StopIteration, which a coroutine turns into RuntimeError.
        await sweeper.run()


async def test_the_pause_is_between_half_and_one_and_a_half_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(pause_s: float) -> None:
        pauses.append(pause_s)

    monkeypatch.setattr("orbit.server.sweep.asyncio.sleep", sleep)
    draws = iter([0.0, 0.5, 0.75])
    sweeper = Scripted([0, 0, 0], lambda: next(draws), Limits(node_poll_s=2.0))

    with pytest.raises(RuntimeError):
        await sweeper.run()

    assert pauses == [1.0, 2.0, 2.5]

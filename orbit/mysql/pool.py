"""Several lanes for whoever has more callers than connections."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from orbit.mysql.errors import Kind, NotCommitted, Stage
from orbit.mysql.lane import Lane, Tally
from orbit.mysql.times import DEFAULT_TIMES, LaneTimes

if TYPE_CHECKING:
    from orbit.mysql.dsn import DSN
    from orbit.mysql.transaction import Transaction

T = TypeVar("T")

_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 0.5
_AGAIN: Final = frozenset({Kind.RETRY, Kind.RECONNECT})


class LanePool:
    """At most `size` connections. Callers get a lane in the order they asked; the wait counts against their budget.

    `tally` counts for all lanes together.
    """

    def __init__(self, dsn: DSN, size: int, times: LaneTimes = DEFAULT_TIMES, *, name: str) -> None:
        if size < 1:
            raise ValueError("a pool has at least one lane")
        self.tally = Tally()
        # Used from the end, so that a quiet pool keeps few connections warm instead of all of them lukewarm.
        self._free = [Lane(dsn, times, name=f"{name}-{number}", tally=self.tally) for number in range(size)]
        self._turns = asyncio.Semaphore(size)
        self._closed = False

    async def run(self, work: Callable[[Transaction], Awaitable[T]], *, budget_s: float) -> T:
        """Do `Lane.run` on a free lane. Raises and cancels as that does."""
        async with self._lane(budget_s) as (lane, left_s):
            return await lane.run(work, budget_s=left_s)

    async def read(self, work: Callable[[Transaction], Awaitable[T]], *, budget_s: float) -> T:
        """Do `Lane.read` on a free lane. Raises and cancels as that does."""
        async with self._lane(budget_s) as (lane, left_s):
            return await lane.read(work, budget_s=left_s)

    async def run_again(self, work: Callable[[Transaction], Awaitable[T]], *, budget_s: float) -> T:
        """Do `run`, again after NotCommitted of kind RETRY or RECONNECT until `budget_s` is spent.

        `work` must be fit to run several times; nothing of an earlier time is in the database. CommitUnconfirmed is
        never repeated here: only the caller knows whether its transaction can tell that it was there before.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + budget_s
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return await self.run(work, budget_s=deadline - loop.time())
            except NotCommitted as failure:
                delay = random.uniform(0, pause_s)  # noqa: S311 - spreads retries, guards nothing
                if failure.kind not in _AGAIN or loop.time() + delay >= deadline:
                    raise
            await asyncio.sleep(delay)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def close(self) -> None:
        """Close the free lanes now and the others when they come back. Safe to call twice."""
        self._closed = True
        for lane in self._free:
            await lane.close()

    @asynccontextmanager
    async def _lane(self, budget_s: float) -> AsyncIterator[tuple[Lane, float]]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + budget_s
        if self._closed:
            raise RuntimeError("the pool is closed")
        try:
            async with asyncio.timeout_at(deadline):
                await self._turns.acquire()
        except TimeoutError:
            raise NotCommitted(None, Kind.RETRY, Stage.OPENING, "no lane was free in time") from None
        lane = self._free.pop()
        try:
            yield lane, deadline - loop.time()
        finally:
            self._give_back(lane)

    def _give_back(self, lane: Lane) -> None:
        # No await here: a commit that was confirmed must not turn into a cancellation.
        self._free.append(lane)
        self._turns.release()
        if self._closed:
            lane.discard()

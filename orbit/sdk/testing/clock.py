"""Time that passes when a test says so."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable

from orbit.sdk.supervise import Timing


class FakeClock:
    """A monotonic clock that stands still until `advance`. For one event loop.

    It starts at `time.monotonic()`, so that its moments compare with real ones.
    """

    def __init__(self) -> None:
        self._now = time.monotonic()
        self._numbers = itertools.count()
        # (moment, number, future); one for each sleeper, removed when it wakes or is cancelled.
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def __call__(self) -> float:
        """The time now, in seconds."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Sleep until the clock has been advanced so far. Cancelling is safe."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        sleeper = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._numbers), sleeper))
        await sleeper

    async def advance(self, seconds: float, *, turns: int = 20) -> None:
        """Let time pass; who sleeps until a moment in it wakes then, in order, and has `turns` turns of the loop.

        Tasks that have just been made get their turns first, so that they sleep from the time before.
        """
        await _turns(turns)
        until = self._now + seconds
        while self._sleepers and self._sleepers[0][0] <= until:
            moment, _, sleeper = heapq.heappop(self._sleepers)
            if sleeper.cancelled():
                continue
            self._now = max(self._now, moment)
            sleeper.set_result(None)
            await _turns(turns)
        self._now = until
        await _turns(turns)

    @property
    def sleeping(self) -> int:
        """How many sleep."""
        return sum(not sleeper.done() for _, _, sleeper in self._sleepers)

    def timing(self, jitter: Callable[[], float] = lambda: 1.0) -> Timing:
        """Clock, sleep and dice for a `WorkerRunner` or an `EventConsumer`; without chance unless given."""
        return Timing(clock=self, sleep=self.sleep, jitter=jitter)


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)

"""Signals that tests wait on instead of sleeping.

The product fires a signal where something interesting has happened. Nobody listens in production, so firing does
nothing there. A test listens first, then waits with a deadline.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

BUFFERED: Final = 1_024


class Signal:
    """One named moment. `fire` is safe from the event loop's thread only; waiting is safe to cancel."""

    __slots__ = ("_fired", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        # At most BUFFERED firings wait for a listener that is slower; the oldest are dropped first.
        self._fired: asyncio.Queue[dict[str, Any]] | None = None

    def fire(self, **facts: Any) -> None:
        """Report the moment and its facts to the listener, if there is one."""
        if self._fired is None:
            return
        if self._fired.full():
            self._fired.get_nowait()
        self._fired.put_nowait(facts)

    def listen(self) -> Signal:
        """Start to keep firings; what fired before is not seen. Returns the signal itself."""
        self._fired = asyncio.Queue(BUFFERED)
        return self

    async def wait(self, deadline_s: float) -> dict[str, Any]:
        """The facts of the next firing that was not waited for yet; raises TimeoutError after `deadline_s` seconds."""
        if self._fired is None:
            raise RuntimeError(f"listen() to the signal {self.name} before waiting for it")
        async with asyncio.timeout(deadline_s):
            return await self._fired.get()

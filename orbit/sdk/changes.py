"""Waiting for a condition on plain data that one event loop changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Changes:
    """Wakes whoever waits for a condition each time the data may have changed. For one event loop's thread."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def notify(self) -> None:
        """Let every waiter look again."""
        self._next.set()
        self._next = asyncio.Event()

    async def until(
        self, condition: Callable[[], bool], deadline: float | Callable[[], float | None] | None = None
    ) -> bool:
        """Wait until `condition()` holds, at most until `deadline` on the loop's clock; says whether it holds.

        A deadline that may move is given as a function; both are asked again after every change. Cancelling is safe.
        """
        while not condition():
            changed = self._next
            try:
                async with asyncio.timeout_at(deadline() if callable(deadline) else deadline):
                    await changed.wait()
            except TimeoutError:
                return condition()
        return True

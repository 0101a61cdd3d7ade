"""What the platform pushed and nobody has read yet, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from orbit.sdk.changes import Changes
from orbit.sdk.errors import OrbitError, WorkerBackpressure

T = TypeVar("T")


class Unread(Generic[T]):
    """At most `most` pushes that no reader waits for; one more is backpressure."""

    def __init__(self, what: str, most: int, ended: Callable[[], OrbitError | None]) -> None:
        """`ended()` says why the connection is over, None while it is open; `end()` must be called when it is."""
        self._what = what
        self._most = most
        self._ended = ended
        self._items: deque[T] = deque()
        self._readers = 0
        self._changes = Changes()

    def put(self, item: T) -> None:
        """Keep a push for the next reader; raises WorkerBackpressure."""
        # A reader that waits has as good as read one; it has only not had its turn yet.
        if len(self._items) >= self._most + self._readers:
            raise WorkerBackpressure(f"{self._most} {self._what} were not read")
        self._items.append(item)
        self._changes.notify()

    async def next(self) -> T:
        """Return the oldest push; raise the reason when the connection is over. Cancelling loses nothing."""
        self._readers += 1
        try:
            await self._changes.until(lambda: bool(self._items) or self._ended() is not None)
        finally:
            self._readers -= 1
        reason = self._ended()
        if reason is not None:
            raise reason
        return self._items.popleft()

    def end(self) -> None:
        """Drop what is unread and wake the readers."""
        self._items.clear()
        self._changes.notify()

"""Wake-ups between coroutines of one process: "there may be something to do for this key, look again".

A wake-up carries no facts; whoever is woken asks the database. Between nodes nothing is sent: every waiter looks again
after `Limits.node_poll_s` anyway, which also covers a wake-up whose node died between COMMIT and notifying.

    with wake.watch(subscription_key(subscription_id)) as watch:
        while True:
            watch.arm()
            ...look, act...
            await watch.wait(limits.node_poll_s)

Nothing is lost between looking and waiting: a notification after `arm` makes the next `wait` return at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


def subscription_key(subscription_id: str) -> str:
    """The key for deliveries of one subscription that may have become claimable."""
    return f"subscription:{subscription_id}"


def instance_key(instance_id: str) -> str:
    """The key for a worker's session that may have been fenced."""
    return f"instance:{instance_id}"


def queue_key(queue_id: str) -> str:
    """The key for tasks of one queue that may have become claimable."""
    return f"queue:{queue_id}"


class Watch:
    """One waiter's view of its keys. Belongs to one task."""

    __slots__ = ("_notified",)

    def __init__(self) -> None:
        self._notified = asyncio.Event()

    def arm(self) -> None:
        """Forget the notifications so far; call it before looking."""
        self._notified.clear()

    def notify(self) -> None:
        """Wake this waiter alone."""
        self._notified.set()

    async def wait(self, timeout_s: float) -> bool:
        """Wait until notified since `arm`, at most `timeout_s` seconds; tell whether notified. Safe to cancel."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._notified.wait()
        except TimeoutError:
            return self._notified.is_set()
        return True


class Wake:
    """The process's notice board. Use it from the event loop's thread only; it holds nothing but present waiters."""

    def __init__(self) -> None:
        self._watches: dict[str, set[Watch]] = {}

    @contextmanager
    def watch(self, *keys: str) -> Iterator[Watch]:
        """Watch one or more keys for as long as the context is open."""
        watch = Watch()
        for key in keys:
            self._watches.setdefault(key, set()).add(watch)
        try:
            yield watch
        finally:
            for key in keys:
                watches = self._watches[key]
                watches.discard(watch)
                if not watches:
                    del self._watches[key]

    def notify(self, key: str) -> None:
        """Wake everybody who watches `key` now. Call it after COMMIT, never before."""
        for watch in self._watches.get(key, ()):
            watch.notify()

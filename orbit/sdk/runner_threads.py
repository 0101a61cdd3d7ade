"""Threads for sync handlers: at most as many as handlers may run, kept for the next one.

They are daemons, unlike those of `concurrent.futures`: a handler that never returns must not keep the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

NAME: Final = "orbit-handler"


class Threads:
    """At most `most` threads, made when they are needed. All methods belong to one thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy = 0
        self._lock = threading.Lock()

    def run(self, work: Callable[[], None]) -> None:
        """Run `work`, which must not raise, in a thread; it waits while all are busy."""
        with self._lock:
            self._busy += 1
            busy = self._busy
        if busy > len(self._threads) and len(self._threads) < self._most:
            thread = threading.Thread(target=self._serve, name=f"{NAME}-{len(self._threads) + 1}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._work.put(work)

    def close(self) -> None:
        """Let each thread end when it has done its work; does not wait. Nothing may be run any more."""
        for _ in self._threads:
            self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            finally:
                with self._lock:
                    self._busy -= 1

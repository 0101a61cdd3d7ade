"""Notices that the event loop stands still, and names the handler that holds it.

It looks from a thread of its own, since the loop cannot. A loop that stands still sends no heartbeat and no renewal:
an async handler must not block it, a sync one runs in a thread and may.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from typing import Final

LOOK_S: Final = 0.5
"""How often the loop is asked for a sign of life."""

WARN_S: Final = 1.0
"""A loop that has given none for so long is blocked."""

_log = logging.getLogger(__name__)


class LagWatch:
    """Watches the running loop between `start` and `stop`; one warning for each time it stands still."""

    def __init__(self, *, look_s: float = LOOK_S, warn_s: float = WARN_S) -> None:
        self._look_s = look_s
        self._warn_s = warn_s
        self._loop = asyncio.get_running_loop()
        self._ident = threading.get_ident()
        self._answered = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="orbit-runner-lag", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more; the thread ends by itself, within `look_s` and the loop's next turn."""
        self._over.set()
        self._answered.set()

    def _watch(self) -> None:
        while not self._over.wait(self._look_s):
            self._answered.clear()
            asked_at = time.monotonic()
            try:
                self._loop.call_soon_threadsafe(self._answered.set)
            except RuntimeError:  # the loop is closed
                return
            if not self._answered.wait(self._warn_s):
                self._warn()
                self._answered.wait()
                if not self._over.is_set():
                    _log.warning("the event loop goes on after %.1f s", time.monotonic() - asked_at)

    def _warn(self) -> None:
        task = asyncio.current_task(self._loop)
        # The documented way to another thread's frame; it is a snapshot, and None where the thread has ended.
        frame = sys._current_frames().get(self._ident)  # noqa: SLF001 - see above
        _log.warning(
            "the event loop has been blocked for more than %.1f s by %s, at %s; heartbeats and renewals wait: "
            "make what blocks a sync handler, or await asyncio.to_thread(...) for it",
            self._warn_s,
            "no task" if task is None else task.get_name(),
            "an unknown line" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}",
        )

"""SIGTERM and SIGINT as events: the first asks for a drain, a second one for an end at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Shutdown:
    """What the operating system asked for so far. `first` is the signal that started the drain."""

    __slots__ = ("drain", "first", "hard")

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.hard = asyncio.Event()
        self.first: signal.Signals | None = None

    def request(self, which: signal.Signals) -> None:
        """Note one signal."""
        if self.first is None:
            self.first = which
            self.drain.set()
        else:
            self.hard.set()


@contextmanager
def shutdown_signals() -> Iterator[Shutdown]:
    """Turn SIGTERM and SIGINT into a Shutdown's events while inside; the main thread's running loop is needed.

    The former dispositions come back at the end, so that a signal during the interpreter's own shutdown ends it.
    """
    loop = asyncio.get_running_loop()
    shutdown = Shutdown()
    former = {which: signal.getsignal(which) for which in SIGNALS}
    for which in SIGNALS:
        loop.add_signal_handler(which, shutdown.request, which)
    try:
        yield shutdown
    finally:
        for which, handler in former.items():
            loop.remove_signal_handler(which)
            signal.signal(which, handler)

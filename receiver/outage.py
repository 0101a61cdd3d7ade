"""Times without a database: nothing is taken meanwhile, and probes find out when it is back.

The wait between probes grows over one outage, and over the next one too unless an event was stored in between: a
database that passes the probe and fails every event must not be offered event after event, each spending an attempt.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from orbit.mysql.errors import NotCommitted
from orbit.runtime.logs import get_logger
from receiver.policy import probe_delay
from receiver.startup import StartupRefused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Never

_log: Final = get_logger(__name__)


class Outage:
    """Whether the database is taken for unusable. All methods belong to one event loop."""

    def __init__(
        self,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`sleep` and `jitter` are for tests."""
        self._sleep = sleep
        self._jitter = jitter
        self._began = asyncio.Event()
        self._probes = 0

    @property
    def lasts(self) -> bool:
        """Whether an outage has begun and not ended."""
        return self._began.is_set()

    def begin(self) -> None:
        """Note that an event failed because the database could not be used; the caller pauses its consumer."""
        self._began.set()

    def stored(self) -> None:
        """Note that an event was stored: the database works, and the next outage begins with a short wait."""
        self._probes = 0

    async def watch(self, check: Callable[[], Awaitable[None]], resume: Callable[[], None]) -> Never:
        """During each outage wait and `check`, until that passes; then end the outage and `resume`.

        `check` raises NotCommitted or StartupRefused while the database cannot be used. Safe to cancel.
        """
        while True:
            await self._began.wait()
            while True:
                await self._sleep(probe_delay(self._probes, jitter=self._jitter()))
                self._probes += 1
                if await self._passes(check):
                    break
            self._began.clear()
            resume()
            _log.info("database available again", probes=self._probes)

    async def _passes(self, check: Callable[[], Awaitable[None]]) -> bool:
        try:
            await check()
        except NotCommitted as error:
            _log.warning(
                "database still unavailable",
                errno=error.errno,
                kind=str(error.kind),
                reason=error.reason or None,
                probes=self._probes,
            )
        except StartupRefused as error:
            _log.error("database refused", reason=str(error), probes=self._probes)
        else:
            return True
        return False

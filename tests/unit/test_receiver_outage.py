"""Outages: when probes come, what ends one, and what an outage right after the last one does to the waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from orbit.mysql.checks import Problem
from orbit.mysql.errors import Kind, NotCommitted, Stage
from receiver.outage import Outage
from receiver.policy import probe_delay
from receiver.startup import StartupRefused

AWAY = NotCommitted(2003, Kind.RECONNECT, Stage.OPENING)
CHANGED = StartupRefused([Problem("sync_binlog", "0", "1")])


class Rig:
    """An outage with a sleep that the test ends by hand, and a check that fails as it is told."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.failures: list[Exception] = []
        self.resumed = 0
        self._sleeping = asyncio.Event()
        self._wake = asyncio.Event()
        self.outage = Outage(sleep=self._sleep, jitter=lambda: 1.0)

    async def _sleep(self, delay_s: float) -> None:
        self.slept.append(delay_s)
        self._sleeping.set()
        await self._wake.wait()
        self._wake.clear()

    async def _check(self) -> None:
        if self.failures:
            raise self.failures.pop(0)

    def _resume(self) -> None:
        self.resumed += 1

    async def probe(self) -> None:
        """Let the next wait end and the check after it run, up to the next wait or the resumption."""
        async with asyncio.timeout(10):
            await self._sleeping.wait()
            self._sleeping.clear()
            resumed = self.resumed
            self._wake.set()
            while not self._sleeping.is_set() and self.resumed == resumed:
                await asyncio.sleep(0)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.outage.watch(self._check, self._resume))
        yield
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()


async def test_without_an_outage_nothing_is_probed() -> None:
    rig = Rig()
    async with rig.watched():
        for _ in range(10):
            await asyncio.sleep(0)
    assert (rig.slept, rig.resumed, rig.outage.lasts) == ([], 0, False)


async def test_an_outage_is_probed_ever_less_often_and_ends_with_the_first_probe_that_passes() -> None:
    rig = Rig()
    rig.failures = [AWAY, CHANGED, AWAY, AWAY, AWAY]
    async with rig.watched():
        rig.outage.begin()
        for _ in range(5):
            await rig.probe()
            assert (rig.resumed, rig.outage.lasts) == (0, True)
        await rig.probe()
    assert rig.slept == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert (rig.resumed, rig.outage.lasts) == (1, False)


@pytest.mark.parametrize(("stored", "next_wait_s"), [(True, 2.0), (False, 4.0)])
async def test_the_next_outage_begins_with_a_short_wait_only_if_an_event_was_stored_between(
    stored: bool, next_wait_s: float
) -> None:
    rig = Rig()
    async with rig.watched():
        rig.outage.begin()
        await rig.probe()
        assert rig.resumed == 1
        if stored:
            rig.outage.stored()
        rig.outage.begin()
        await rig.probe()
    assert rig.slept == [2.0, next_wait_s]
    assert rig.resumed == 2


@pytest.mark.parametrize(
    ("probes", "least_s", "most_s"),
    [(0, 1.0, 2.0), (1, 2.0, 4.0), (2, 4.0, 8.0), (3, 8.0, 16.0), (4, 15.0, 30.0), (99, 15.0, 30.0)],
)
def test_the_wait_before_a_probe_doubles_to_thirty_seconds(probes: int, least_s: float, most_s: float) -> None:
    assert probe_delay(probes, jitter=0.0) == least_s
    assert probe_delay(probes, jitter=1.0) == most_s

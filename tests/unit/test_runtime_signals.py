"""Signals of tests, and signals of the operating system as events."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from orbit.runtime.shutdown import shutdown_signals
from orbit.runtime.signals import BUFFERED, Signal


async def test_a_signal_nobody_listens_to_does_nothing() -> None:
    moment = Signal("committed")
    moment.fire(event_id="a")
    with pytest.raises(RuntimeError, match="listen"):
        await moment.wait(0.1)


async def test_each_wait_takes_the_next_firing_with_its_facts() -> None:
    moment = Signal("committed").listen()
    moment.fire(event_id="a")
    moment.fire(event_id="b")
    assert await moment.wait(1) == {"event_id": "a"}
    assert await moment.wait(1) == {"event_id": "b"}
    with pytest.raises(TimeoutError):
        await moment.wait(0.01)


async def test_a_slow_listener_keeps_the_newest_firings() -> None:
    moment = Signal("committed").listen()
    for number in range(BUFFERED + 1):
        moment.fire(number=number)
    assert await moment.wait(1) == {"number": 1}


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_asks_for_a_drain_and_the_second_for_an_end(which: signal.Signals) -> None:
    before = signal.getsignal(which)
    with shutdown_signals() as shutdown:
        assert not shutdown.drain.is_set()
        os.kill(os.getpid(), which)
        async with asyncio.timeout(5):
            await shutdown.drain.wait()
        assert shutdown.first is which
        assert not shutdown.hard.is_set()
        os.kill(os.getpid(), which)
        async with asyncio.timeout(5):
            await shutdown.hard.wait()
        assert shutdown.first is which
    assert signal.getsignal(which) is before

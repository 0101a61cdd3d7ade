"""Wake-ups in one process: none is lost between looking and waiting."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from orbit.server.wake import Wake, Watch, queue_key, subscription_key

FOREVER_S = 3_600.0


async def test_a_waiter_is_woken_by_its_key_and_by_no_other() -> None:
    wake = Wake()
    with wake.watch("subscription:a") as a, wake.watch("subscription:b") as b:
        wake.notify("subscription:a")

        assert await a.wait(FOREVER_S) is True
        assert await b.wait(0) is False


async def test_every_waiter_of_a_key_is_woken() -> None:
    wake = Wake()
    with wake.watch("subscription:a") as one, wake.watch("subscription:a") as two:
        waiting = [asyncio.ensure_future(watch.wait(FOREVER_S)) for watch in (one, two)]
        await asyncio.sleep(0)
        wake.notify("subscription:a")

        assert await asyncio.gather(*waiting) == [True, True]


async def test_a_wait_without_a_notification_ends_at_its_timeout() -> None:
    with Wake().watch("subscription:a") as watch:
        assert await watch.wait(0.001) is False


async def test_a_notification_is_seen_until_it_is_forgotten() -> None:
    wake = Wake()
    with wake.watch("subscription:a") as watch:
        wake.notify("subscription:a")
        assert await watch.wait(FOREVER_S) is True
        watch.arm()
        assert await watch.wait(0) is False


async def test_a_cancelled_wait_leaves_the_watch_usable() -> None:
    wake = Wake()
    with wake.watch("subscription:a") as watch:
        waiting = asyncio.ensure_future(watch.wait(FOREVER_S))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        wake.notify("subscription:a")
        assert await watch.wait(FOREVER_S) is True


def test_nothing_is_kept_of_keys_that_nobody_watches() -> None:
    wake = Wake()
    wake.notify("subscription:a")
    with wake.watch("subscription:a"), wake.watch("subscription:a"):
        assert list(wake._watches) == ["subscription:a"]
    assert wake._watches == {}


def test_keys_of_different_things_differ() -> None:
    assert subscription_key("0" * 32) == "subscription:" + "0" * 32
    assert queue_key("0" * 32) == "queue:" + "0" * 32


class LookThenWait(RuleBasedStateMachine):
    """A consumer that looks for items and waits, a producer that adds items and notifies, in any order of steps.

    The consumer may only sleep while nothing has been added since it looked: anything else is a lost wake-up.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.wake = Wake()
        self.context = self.wake.watch("subscription:a")
        self.items = 0
        self.seen = 0
        self.waiting: asyncio.Task[bool] | None = None

    @initialize()
    def open(self) -> None:
        self.watch: Watch = self.context.__enter__()
        self.look()

    def look(self) -> None:
        self.watch.arm()
        self.seen = self.items

    @rule()
    def add(self) -> None:
        self.items += 1
        self.wake.notify("subscription:a")

    @rule()
    def notify_another_key(self) -> None:
        self.wake.notify("subscription:b")

    @precondition(lambda self: self.waiting is None)
    @rule()
    def look_again(self) -> None:
        self.look()

    @precondition(lambda self: self.waiting is None)
    @rule()
    def wait(self) -> None:
        self.waiting = self.loop.create_task(self.watch.wait(FOREVER_S))

    @precondition(lambda self: self.waiting is not None)
    @rule()
    def run(self) -> None:
        """Let everything happen that can happen now."""
        assert self.waiting is not None
        for _ in range(5):
            self.loop.run_until_complete(asyncio.sleep(0))
        assert self.waiting.done() is (self.items > self.seen)
        if self.waiting.done():
            assert self.waiting.result() is True
            self.waiting = None
            self.look()

    @precondition(lambda self: self.waiting is not None)
    @rule()
    def give_up_waiting(self) -> None:
        assert self.waiting is not None
        self.waiting.cancel()
        self.loop.run_until_complete(asyncio.wait([self.waiting]))
        self.waiting = None
        self.look()

    @invariant()
    def the_board_holds_this_waiter_only(self) -> None:
        assert list(self.wake._watches) in ([], ["subscription:a"])

    def teardown(self) -> None:
        if self.waiting is not None:
            self.waiting.cancel()
            self.loop.run_until_complete(asyncio.wait([self.waiting]))
        self.context.__exit__(None, None, None)
        self.loop.close()
        assert self.wake._watches == {}


TestNoWakeUpIsLost = LookThenWait.TestCase
TestNoWakeUpIsLost.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)

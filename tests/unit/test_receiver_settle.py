"""The loop round one event: what is tried again, what ends it, and what a doubt does to the answer."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, cast

import pytest

from receiver.outcome import Applied, EventConflict, Outcome
from receiver.settle import Undecided, settle
from tests.support.events import an_event
from tests.support.scripted_store import DENIED, DOUBT, LOCKED, LOWERED, REFUSED, TOO_LONG, Scripted

if TYPE_CHECKING:
    from receiver.store import Store

FIRST = Applied(applied=True, duplicate=False)
DUPLICATE = Applied(applied=True, duplicate=True)


async def run(script: Scripted, *, lease_s: float = 30.0, draining: asyncio.Event | None = None) -> Applied:
    async with asyncio.timeout(10):
        return await settle(
            cast("Store", script),
            an_event(1),
            lease_until=time.monotonic() + lease_s,
            draining=draining or asyncio.Event(),
        )


@pytest.mark.parametrize(
    ("failures", "answer"),
    [
        ([], FIRST),
        ([DOUBT], DUPLICATE),
        ([DOUBT], FIRST),
        ([LOCKED], FIRST),
        ([DOUBT, LOCKED], DUPLICATE),
        ([DOUBT, REFUSED], DUPLICATE),
        ([REFUSED, REFUSED], FIRST),
        ([DOUBT, DOUBT, LOCKED], DUPLICATE),
    ],
)
async def test_an_event_is_tried_again_until_it_is_decided(failures: list[Exception], answer: Applied) -> None:
    script = Scripted(*failures, answer)
    assert await run(script) == answer
    assert len(script.budgets) == len(failures) + 1


@pytest.mark.parametrize(
    ("failures", "outcome", "pause"),
    [
        ([REFUSED, REFUSED, REFUSED], Outcome.UNAVAILABLE, True),
        ([DENIED], Outcome.UNAVAILABLE, True),
        ([LOWERED], Outcome.UNAVAILABLE, True),
        ([TOO_LONG], Outcome.INVALID, False),
        ([DOUBT, REFUSED, REFUSED], Outcome.UNCONFIRMED, True),
        ([DOUBT, DENIED], Outcome.UNCONFIRMED, True),
    ],
)
async def test_what_cannot_be_decided_ends_with_its_word_and_says_whether_to_pause(
    failures: list[Exception], outcome: Outcome, pause: bool
) -> None:
    script = Scripted(*failures)
    with pytest.raises(Undecided) as raised:
        await run(script)
    assert (raised.value.outcome, raised.value.pause) == (outcome, pause)
    assert raised.value.failure is failures[-1]
    assert len(script.budgets) == len(failures)


async def test_a_refused_event_is_not_tried_again() -> None:
    script = Scripted(EventConflict("e", "1", "2"))
    with pytest.raises(EventConflict):
        await run(script)
    assert len(script.budgets) == 1


async def test_each_call_gets_at_most_five_seconds_and_never_more_than_the_lease_has() -> None:
    ample, short = Scripted(FIRST), Scripted(FIRST)
    await run(ample, lease_s=30)
    await run(short, lease_s=3)
    assert ample.budgets == [5.0]
    assert 0 < short.budgets[0] <= 3.0


async def test_a_lease_that_is_nearly_over_ends_the_tries() -> None:
    script = Scripted(DOUBT)
    with pytest.raises(Undecided) as raised:
        await run(script, lease_s=0.5)
    assert (raised.value.outcome, raised.value.pause) == (Outcome.UNCONFIRMED, False)


async def test_a_drain_that_has_begun_lets_the_call_end_and_adds_no_other() -> None:
    draining = asyncio.Event()
    draining.set()
    assert await run(Scripted(FIRST), draining=draining) == FIRST
    with pytest.raises(Undecided) as raised:
        await run(Scripted(LOCKED), draining=draining)
    assert (raised.value.outcome, raised.value.pause) == (Outcome.UNAVAILABLE, False)


async def test_a_drain_cuts_the_wait_between_two_tries() -> None:
    draining = asyncio.Event()
    # Late tries are half a second apart at least; the drain comes long before any of those waits could end.
    script = Scripted(*[LOCKED] * 40)
    task = asyncio.create_task(run(script, draining=draining))
    async with asyncio.timeout(10):
        while len(script.budgets) < 6:
            await asyncio.sleep(0)
    draining.set()
    with pytest.raises(Undecided):
        await task
    assert len(script.budgets) == 6

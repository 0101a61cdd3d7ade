"""The dial loop on a clock of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from orbit.sdk.errors import Disconnected, HTTPError, OrbitError, ProtocolMismatch, TransportError
from orbit.sdk.supervise import Timing, supervise, together


class Outage:
    """Sessions that end as scripted; the clock moves only when one of them, or a sleep, says so."""

    def __init__(self, *endings: tuple[bool, float, OrbitError | None]) -> None:
        self.endings = list(endings)
        self.now = 1_000.0
        self.dialled_at: list[float] = []
        self.waits: list[float] = []

    async def session(self, welcomed: Callable[[], None]) -> None:
        self.dialled_at.append(self.now)
        welcome, lasted, error = self.endings.pop(0)
        if welcome:
            welcomed()
        self.now += lasted
        if error is not None:
            raise error

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    async def run(self, jitter: float = 0.5) -> None:
        timing = Timing(clock=lambda: self.now, sleep=self.sleep, jitter=lambda: jitter)
        await supervise(self.session, timing=timing, waiting=lambda _, seconds: self.waits.append(seconds))


GONE = Disconnected("gone", 1011)


async def test_a_server_that_accepts_and_closes_is_dialled_ever_more_slowly() -> None:
    outage = Outage(*[(False, 0.0, GONE)] * 12, (False, 0.0, None))
    await outage.run(jitter=0.5)
    assert outage.waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 7.5, 7.5, 7.5, 7.5, 7.5])


async def test_a_server_that_welcomes_and_closes_at_once_is_treated_the_same() -> None:
    outage = Outage(*[(True, 0.01, GONE)] * 5, (False, 0.0, None))
    await outage.run(jitter=0.5)
    assert outage.waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6])


async def test_a_welcomed_session_that_lasted_starts_the_waits_over() -> None:
    outage = Outage(*[(False, 0.0, GONE)] * 4, (True, 5.0, GONE), (False, 0.0, GONE), (False, 0.0, None))
    await outage.run(jitter=0.5)
    assert outage.waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 0.1, 0.2])


async def test_a_long_session_without_welcome_does_not() -> None:
    outage = Outage(*[(False, 60.0, GONE)] * 3, (False, 0.0, None))
    await outage.run(jitter=0.5)
    assert outage.waits == pytest.approx([0.1, 0.2, 0.4])


async def test_the_jitter_reaches_down_to_no_wait_at_all() -> None:
    outage = Outage(*[(False, 0.0, GONE)] * 3, (False, 0.0, None))
    await outage.run(jitter=0.0)
    assert outage.waits == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "error",
    [
        HTTPError(401, "UNAUTHENTICATED"),
        HTTPError(403, "PERMISSION_DENIED"),
        HTTPError(404, "NOT_FOUND"),
        HTTPError(426, "UNSUPPORTED_PROTOCOL"),
        HTTPError(302),
        ProtocolMismatch("no subprotocol"),
    ],
)
async def test_a_refusal_for_good_ends_the_loop(error: OrbitError) -> None:
    outage = Outage((False, 0.0, GONE), (False, 0.0, error))
    with pytest.raises(type(error)) as caught:
        await outage.run()
    assert caught.value is error
    assert len(outage.dialled_at) == 2


@pytest.mark.parametrize(
    "error",
    [
        HTTPError(500),
        HTTPError(502),
        HTTPError(503, "UNAVAILABLE"),
        HTTPError(429, "RATE_LIMITED"),
        TransportError("cannot connect", outcome_unknown=False),
        Disconnected("restart", 1012),
    ],
)
async def test_everything_else_is_waited_out(error: OrbitError) -> None:
    outage = Outage((False, 0.0, error), (False, 0.0, None))
    await outage.run()
    assert len(outage.dialled_at) == 2


async def test_an_error_that_is_not_the_sdks_is_not_swallowed() -> None:
    async def session(_: Callable[[], None]) -> None:
        raise RuntimeError("a defect")

    with pytest.raises(RuntimeError):
        await supervise(session, timing=Timing(), waiting=lambda *_: None)


async def test_together_raises_the_failure_itself_and_awaits_the_others() -> None:
    ended = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("waits")

    async def fails_in_a_group() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(_fail())

    with pytest.raises(Disconnected):
        await together(waits(), fails_in_a_group())
    assert ended == ["waits"]


async def test_together_raises_what_failed_first_not_what_failed_for_being_cancelled() -> None:
    async def fails_when_cancelled() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("an aftermath") from None

    with pytest.raises(Disconnected):
        await together(fails_when_cancelled(), _fail_later())


async def test_together_waits_for_its_parts_however_often_it_is_cancelled() -> None:
    ended = asyncio.Event()

    async def ends_slowly() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await ended.wait()

    task = asyncio.create_task(together(ends_slowly(), _fail_later()))
    for _ in range(4):
        await asyncio.sleep(0)
        task.cancel()
    assert not task.done()
    ended.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [one for one in asyncio.all_tasks() if one.get_name() == "orbit-session"] == []


async def test_together_returns_when_all_have() -> None:
    ended: list[int] = []

    async def end(number: int) -> None:
        for _ in range(number):
            await asyncio.sleep(0)
        ended.append(number)

    await together(end(3), end(1))

    assert ended == [1, 3]


async def test_a_cancellation_is_not_lost_to_a_failure_of_the_same_moment() -> None:
    async def fails_when_cancelled() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise GONE from None

    task = asyncio.create_task(together(fails_when_cancelled(), fails_when_cancelled()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _fail() -> None:
    raise GONE


async def _fail_later() -> None:
    await asyncio.sleep(0)
    raise GONE

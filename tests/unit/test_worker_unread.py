"""What nobody has read yet: bounded, in order, and nothing of it after the end."""

from __future__ import annotations

import asyncio

import pytest

from orbit.sdk.errors import OrbitError, WorkerBackpressure, WorkerClosed
from orbit.sdk.worker_unread import Unread


class Box:
    """A buffer of two numbers and the connection's end."""

    def __init__(self) -> None:
        self.error: OrbitError | None = None
        self.unread: Unread[int] = Unread("numbers", 2, lambda: self.error)

    async def reader(self) -> asyncio.Task[int]:
        """A reader that waits."""
        task = asyncio.create_task(self.unread.next())
        await asyncio.sleep(0)
        return task


async def test_what_came_first_is_read_first() -> None:
    box = Box()
    box.unread.put(1)
    box.unread.put(2)
    assert [await box.unread.next(), await box.unread.next()] == [1, 2]


async def test_one_more_than_the_bound_is_backpressure() -> None:
    box = Box()
    box.unread.put(1)
    box.unread.put(2)
    with pytest.raises(WorkerBackpressure, match="2 numbers were not read"):
        box.unread.put(3)


async def test_what_a_waiting_reader_will_take_is_not_unread() -> None:
    box = Box()
    readers = [await box.reader(), await box.reader()]
    for number in range(1, 5):
        box.unread.put(number)
    with pytest.raises(WorkerBackpressure):
        box.unread.put(5)
    assert await asyncio.gather(*readers) == [1, 2]
    assert [await box.unread.next(), await box.unread.next()] == [3, 4]


async def test_a_reader_that_is_cancelled_loses_nothing_and_makes_no_room() -> None:
    box = Box()
    early, late = await box.reader(), await box.reader()
    box.unread.put(1)
    early.cancel()  # it has been woken and has not had its turn
    await asyncio.wait([early])
    assert early.cancelled()
    assert await late == 1
    box.unread.put(2)
    box.unread.put(3)
    with pytest.raises(WorkerBackpressure):
        box.unread.put(4)


async def test_the_end_wakes_readers_and_drops_the_rest() -> None:
    box = Box()
    reader = await box.reader()
    box.unread.put(1)
    box.error = WorkerClosed("closed")
    box.unread.end()
    with pytest.raises(WorkerClosed):
        await reader
    with pytest.raises(WorkerClosed):
        await box.unread.next()

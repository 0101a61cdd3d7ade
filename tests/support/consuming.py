"""A running `EventConsumer` for tests: its handler is scripted, its end is checked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from orbit.sdk import ConsumerCounts, Delivery, EventConsumer, InvalidDelivery
from orbit.sdk.changes import Changes
from orbit.sdk.client import OrbitClient
from orbit.sdk.supervise import Timing

WAIT_S = 20.0


def at_once(jitter: float = 0.0) -> Timing:
    """Dials again without waiting, but yields to the loop."""
    return Timing(jitter=lambda: jitter)


class Script:
    """A handler that does what the test says and keeps what it was called with."""

    def __init__(self, act: Callable[[Delivery], Awaitable[None]] | None = None) -> None:
        self.calls: list[Delivery] = []
        self.invalid: list[InvalidDelivery] = []
        self.done: list[str] = []
        self.cancelled: list[str] = []
        self.changes = Changes()
        self._act = act

    async def __call__(self, delivery: Delivery) -> None:
        self.calls.append(delivery)
        self.changes.notify()
        try:
            if self._act is not None:
                await self._act(delivery)
            self.done.append(delivery.delivery_id)
        except asyncio.CancelledError:
            self.cancelled.append(delivery.delivery_id)
            raise
        finally:
            self.changes.notify()

    def on_invalid(self, invalid: InvalidDelivery) -> None:
        self.invalid.append(invalid)

    async def until(self, condition: Callable[[], bool], what: str = "") -> None:
        deadline = asyncio.get_running_loop().time() + WAIT_S
        assert await self.changes.until(condition, deadline), what or "the condition did not come true"


def whole(counts: ConsumerCounts) -> bool:
    """Whether every lease received is counted in exactly one place."""
    places = (
        counts.acknowledged
        + counts.failed
        + counts.invalid
        + counts.released
        + counts.refused
        + counts.superseded
        + counts.waiting
        + counts.running
        + counts.pending
    )
    return counts.received == places


@asynccontextmanager
async def consuming(
    client: OrbitClient, subscription_id: str, script: Script, *, alone: bool = True, **options: Any
) -> AsyncIterator[EventConsumer]:
    """Run a consumer; on leaving stop it, see `run()` end, the counts add up and no task of the SDK's remain.

    `alone` false: another consumer of the test still has tasks. The client is closed, too.
    """
    options.setdefault("timing", at_once())
    options.setdefault("on_invalid", script.on_invalid)
    consumer = EventConsumer(client, subscription_id, script, **options)
    running = asyncio.create_task(consumer.run(), name="test-run")
    try:
        yield consumer
        await asyncio.wait_for(consumer.stop(5.0), WAIT_S)
        await asyncio.wait_for(running, WAIT_S)
    finally:
        running.cancel()
        await asyncio.wait([running])
        await client.close()
    assert whole(consumer.counts), consumer.counts
    assert not alone or leftovers() == []


async def counted(consumer: EventConsumer, condition: Callable[[ConsumerCounts], bool]) -> ConsumerCounts:
    """Wait for a condition on the consumer's counts."""
    try:
        return await asyncio.wait_for(consumer.until(condition), WAIT_S)
    except TimeoutError:
        raise AssertionError(f"the counts did not get there: {consumer.counts}") from None


def leftovers() -> list[str]:
    """Names of tasks of the SDK that still exist."""
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("orbit-")]

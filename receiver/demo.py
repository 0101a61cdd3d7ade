"""`receiver demo`: one cancelled task's way from the platform into the receiver's tables, proved at each step.

It makes new identities each time and needs a queue of its own: another program's event ends it. A failure leaves task,
subscription, delivery and rows as they are for inspection; success pauses the demo's own subscription.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from orbit.mysql.lane import Lane
from orbit.protocol.http_v1 import CreateSubscription, EventType, SubmitTask, TaskState
from orbit.protocol.values import new_id
from orbit.runtime.logs import get_logger
from orbit.sdk import EventConsumer, OrbitClient
from receiver.outcome import Applied, EventRefused
from receiver.settle import Undecided, settle
from receiver.startup import check_database
from receiver.statements import SELECT_VIEW
from receiver.store import Store

if TYPE_CHECKING:
    from orbit.sdk import ConsumerCounts, Delivery, InvalidDelivery
    from receiver.settings import Settings

TOTAL_S: Final = 20.0
DRAIN_S: Final = 5.0
READ_S: Final = 5.0

_log: Final = get_logger(__name__)


class DemoFailed(Exception):
    """Something was not as it must be; says what. Everything is left for inspection."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was found in both databases and at the consumer; each field is read, none is assumed."""

    task_id: str
    state: str
    inbox_duplicate: bool
    applied_events: int
    ack_confirmed: int
    pending: int
    subscription_enabled: bool

    def lines(self) -> tuple[str, str]:
        """The two lines of `receiver demo` (seed result-inbox section 2)."""
        duplicate, enabled = _word(self.inbox_duplicate), _word(self.subscription_enabled)
        return (
            f"task={self.task_id} state={self.state} inbox_duplicate={duplicate} applied_events={self.applied_events}",
            f"ack_confirmed={self.ack_confirmed} pending={self.pending} subscription_enabled={enabled}",
        )


def _word(value: bool) -> str:
    return "true" if value else "false"


class Demo:
    """One run. `interrupted` cuts waits between tries of the database."""

    def __init__(self, settings: Settings, client: OrbitClient, lane: Lane, *, interrupted: asyncio.Event) -> None:
        self._settings = settings
        self._queue_id = settings.credentials.queue_id
        self._client = client
        self._lane = lane
        self._store = Store(lane, consumer_name=settings.consumer_name, queue_id=self._queue_id)
        self._interrupted = interrupted
        self._limit = time.monotonic() + TOTAL_S
        self._task_id = ""
        # The event's id, once its handler has returned; what is wrong, where something is.
        self._handled: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._repeated: Applied | None = None

    async def run(self) -> Report:
        """Do everything and report it.

        Raises DemoFailed, StartupRefused, OrbitError, NotCommitted. Cancelling stops the consumer within 5 s and leaves
        everything as it is.
        """
        await check_database(self._lane)
        subscription_id = await self.subscribe()
        self._task_id = await self.submit_and_cancel()
        counts = await self._consume(subscription_id)
        event_id = self._handled.result()
        if counts.acknowledged != 1 or counts.pending != 0:
            raise DemoFailed(f"the ACK was not confirmed: {counts.acknowledged} confirmed, {counts.pending} pending")
        state, applied_events = await self._read_view(event_id)
        assert self._repeated is not None
        paused = await self._client.pause_subscription(subscription_id)
        return Report(
            task_id=self._task_id,
            state=state,
            inbox_duplicate=self._repeated.duplicate,
            applied_events=applied_events,
            ack_confirmed=counts.acknowledged,
            pending=counts.pending,
            subscription_enabled=paused.enabled,
        )

    async def subscribe(self) -> str:
        """Subscribe to cancellations alone and return the subscription's id."""
        subscription = await self._client.create_subscription(
            new_id(), CreateSubscription(queue_id=self._queue_id, event_types=[EventType.CANCELLED])
        )
        _log.info("subscribed", subscription_id=subscription.subscription_id)
        return subscription.subscription_id

    async def submit_and_cancel(self) -> str:
        """Submit a task that no worker takes, cancel it and return its id."""
        accepted = await self._client.submit_task(
            new_id(),
            SubmitTask(
                queue_id=self._queue_id,
                handler="receiver.demo",
                handler_version="v1",
                payload_version="v1",
                payload=msgspec.Raw(b"{}"),
            ),
        )
        task = await self._client.cancel_task(accepted.task.task_id)
        _log.info("cancelled", task_id=task.task_id, state=str(task.state))
        return task.task_id

    async def _consume(self, subscription_id: str) -> ConsumerCounts:
        consumer = EventConsumer(
            self._client, subscription_id, self._handle, concurrency=1, prefetch=0, on_invalid=self._refuse_invalid
        )
        running = asyncio.create_task(consumer.run(), name="demo-consumer")
        ends: set[asyncio.Future[Any]] = {running, self._handled}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await consumer.stop(DRAIN_S)
            await asyncio.wait({running})
        if self._handled.done():
            # What the handler found wrong comes before what became of the consumer afterwards.
            self._handled.result()
        await running
        return consumer.counts

    async def _handle(self, delivery: Delivery) -> None:
        """Run the business transaction twice; returning is the ACK."""
        if self._handled.done():
            raise DemoFailed("there was an event more")
        try:
            self._handled.set_result(await self._store_twice(delivery))
        except (DemoFailed, EventRefused, Undecided) as error:
            self._fail(str(error))
            raise

    async def _store_twice(self, delivery: Delivery) -> str:
        event = delivery.event
        if event.task_id != self._task_id:
            raise DemoFailed(f"an event of another task came: {event.task_id}; the demo needs a queue of its own")
        first = await self._settle(delivery)
        self._repeated = await self._settle(delivery)
        _log.info("stored twice", event_id=event.event_id, first=str(first.outcome), then=str(self._repeated.outcome))
        if not first.applied or not self._repeated.duplicate:
            raise DemoFailed(f"the event was {first.outcome}, then {self._repeated.outcome}")
        return event.event_id

    async def _settle(self, delivery: Delivery) -> Applied:
        return await settle(
            self._store,
            delivery.event,
            lease_until=delivery.deadline,
            limit_until=self._limit,
            draining=self._interrupted,
        )

    def _refuse_invalid(self, delivery: InvalidDelivery) -> None:
        self._fail(f"delivery {delivery.delivery_id} has an invalid event: {delivery.error}")

    def _fail(self, reason: str) -> None:
        if not self._handled.done():
            self._handled.set_exception(DemoFailed(reason))
            # Seen: where the demo is interrupted nobody asks for it any more.
            self._handled.exception()

    async def _read_view(self, event_id: str) -> tuple[str, int]:
        key = {
            "consumer_name": self._settings.consumer_name,
            "queue_id": self._queue_id,
            "task_id": self._task_id,
        }
        row = await self._lane.read(lambda tx: tx.fetch_one(SELECT_VIEW, key), budget_s=READ_S)
        if row is None:
            raise DemoFailed("the task has no view")
        state, version, last_event_id, applied_events = row
        if (state, last_event_id, applied_events) != (TaskState.CANCELLED, event_id, 1):
            raise DemoFailed(
                f"the view is {state} at version {version} by event {last_event_id}, {applied_events} applied"
            )
        return str(state), int(applied_events)


async def demo(settings: Settings, interrupted: asyncio.Event, *, kind: type[Demo] = Demo) -> Report | None:
    """Run the demo in at most 20 s, and 5 s more where its consumer has to be stopped; None when interrupted.

    Raises what `Demo.run` raises, DemoFailed also when the time is over.
    """
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(OrbitClient(settings.url, settings.credentials))
        lane = Lane(settings.dsn, name="receiver-demo")
        stack.push_async_callback(lane.close)
        running = asyncio.create_task(kind(settings, client, lane, interrupted=interrupted).run(), name="demo")
        waiting = asyncio.create_task(interrupted.wait(), name="demo-interrupted")
        try:
            await asyncio.wait({running, waiting}, timeout=TOTAL_S, return_when=asyncio.FIRST_COMPLETED)
            late = not running.done()
        finally:
            for task in (running, waiting):
                task.cancel()
            await asyncio.wait({running, waiting})
        if interrupted.is_set() and late:
            return None
        if late:
            raise DemoFailed(f"it was not done in {TOTAL_S:.0f} s")
        return running.result()

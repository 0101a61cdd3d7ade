"""`receiver consume`: take the deliveries of one subscription, store each event, acknowledge what is committed."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

from orbit.mysql.lane import Lane
from orbit.protocol.event import RESULT_EVENT_TYPES
from orbit.runtime.logs import get_logger
from orbit.sdk import EventConsumer, OrbitClient, Unavailable
from receiver.outage import Outage
from receiver.outcome import EventConflict, EventRefused, Outcome
from receiver.settle import Undecided, settle
from receiver.startup import check_database
from receiver.store import Store

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from typing import Never

    from orbit.protocol.http_v1 import Subscription
    from orbit.runtime.shutdown import Shutdown
    from orbit.sdk import ConsumerCounts, Delivery, InvalidDelivery
    from receiver.settings import ConsumeSettings

CONCURRENCY: Final = 4
PREFETCH: Final = 16
DRAIN_S: Final = 10.0
CLOSE_S: Final = 2.0
"""The end of the drain that is kept for closing: 1 s for a WebSocket whose other end is frozen, and the lanes."""

_log: Final = get_logger(__name__)


class SubscriptionRefused(Exception):
    """The subscription is not one for this receiver; nothing was taken from it."""


class Receiver:
    """The handler of deliveries: one store for each that runs at once. `counts` counts events by outcome.

    `outage` begins before a delivery fails because the database cannot be used.
    """

    def __init__(self, stores: Sequence[Store], *, draining: asyncio.Event, outage: Outage) -> None:
        self._free = list(stores)
        self._draining = draining
        self._outage = outage
        self.counts: Counter[Outcome] = Counter()

    async def __call__(self, delivery: Delivery) -> None:
        """Store the event; returning is the ACK. Raises EventRefused, Undecided and Unavailable.

        Safe to cancel: an event whose COMMIT was under way is reported as unconfirmed.
        """
        # The consumer runs no more handlers at once than there are stores.
        store = self._free.pop()
        try:
            await self._store(store, delivery)
        finally:
            self._free.append(store)

    async def _store(self, store: Store, delivery: Delivery) -> None:
        unconfirmed_before = store.unconfirmed
        try:
            applied = await settle(store, delivery.event, lease_until=delivery.deadline, draining=self._draining)
        except EventRefused as error:
            self._report_refusal(delivery, error)
            raise
        except Undecided as error:
            self._report_undecided(delivery, error)
            if not error.pause:
                raise
            self._outage.begin()
            raise Unavailable from None
        except asyncio.CancelledError:
            in_doubt = store.unconfirmed > unconfirmed_before
            self._report(Outcome.UNCONFIRMED if in_doubt else Outcome.UNAVAILABLE, delivery, reason="cancelled")
            raise
        self._outage.stored()
        self._report(applied.outcome, delivery)

    def invalid(self, delivery: InvalidDelivery) -> None:
        """Report a delivery whose event the SDK could not accept."""
        self.counts[Outcome.INVALID] += 1
        _log.error(
            "event invalid",
            outcome=str(Outcome.INVALID),
            event_id=delivery.event_id,
            delivery_id=delivery.delivery_id,
            delivery_attempt=delivery.attempt,
            reason=str(delivery.error),
        )

    def _report_refusal(self, delivery: Delivery, error: EventRefused) -> None:
        if isinstance(error, EventConflict):
            self._report(
                error.outcome, delivery, recorded_sha256=error.recorded_sha256, given_sha256=error.given_sha256
            )
        else:
            self._report(error.outcome, delivery, reason=str(error))

    def _report_undecided(self, delivery: Delivery, error: Undecided) -> None:
        failure = error.failure
        self._report(
            error.outcome,
            delivery,
            failure=type(failure).__name__,
            errno=failure.errno,
            kind=str(failure.kind),
            reason=failure.reason or None,
            paused=error.pause,
        )

    def _report(self, outcome: Outcome, delivery: Delivery, **facts: str | int | bool | None) -> None:
        """Write the one line of this event, and count it."""
        self.counts[outcome] += 1
        write = _log.info
        if not outcome.acknowledged:
            write = _log.warning if outcome in {Outcome.UNCONFIRMED, Outcome.UNAVAILABLE} else _log.error
        write(
            f"event {outcome}",
            outcome=str(outcome),
            event_id=delivery.event.event_id,
            task_id=delivery.event.task_id,
            task_version=delivery.event.task_version,
            delivery_attempt=delivery.attempt,
            **facts,
        )


async def consume(settings: ConsumeSettings, shutdown: Shutdown, *, store_type: type[Store] = Store) -> None:
    """Consume until `shutdown` asks for a drain, which takes at most 10 s; a second signal ends it at once.

    Raises SubscriptionRefused, StartupRefused, OrbitError or NotCommitted before anything is taken, and OrbitError when
    the platform refuses this consumer for good. Outages of either side are waited out.
    """
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(OrbitClient(settings.url, settings.credentials))
        probe = _store(settings, stack, "receiver-probe", Store)
        if not await _unless(shutdown.drain, _check_both(client, settings, probe)):
            _log.info("stopped before anything was taken")
            return
        stores = [_store(settings, stack, f"receiver-{number}", store_type) for number in range(CONCURRENCY)]
        outage = Outage()
        receiver = Receiver([store for _, store in stores], draining=shutdown.drain, outage=outage)
        consumer = EventConsumer(
            client,
            settings.subscription_id,
            receiver,
            concurrency=CONCURRENCY,
            prefetch=PREFETCH,
            on_invalid=receiver.invalid,
        )
        _log.info(
            "consuming",
            subscription_id=settings.subscription_id,
            queue_id=settings.credentials.queue_id,
            consumer_name=settings.consumer_name,
        )
        try:
            await _run(consumer, outage.watch(lambda: _check(probe), consumer.resume), shutdown)
        finally:
            _report_end(consumer.counts, receiver.counts)


def check_subscription(subscription: Subscription, *, queue_id: str) -> None:
    """Raise SubscriptionRefused for another queue's subscription or one with other than result events. Pure.

    Taking such deliveries would spend their attempts on events that can never be acknowledged.
    """
    if subscription.queue_id != queue_id:
        raise SubscriptionRefused(
            f"subscription {subscription.subscription_id} is bound to queue {subscription.queue_id},"
            f" configured is {queue_id}"
        )
    others = sorted({str(name) for name in subscription.event_types} - RESULT_EVENT_TYPES)
    if others:
        raise SubscriptionRefused(
            f"subscription {subscription.subscription_id} has {', '.join(others)}; the receiver takes results only"
        )


def _store(settings: ConsumeSettings, stack: AsyncExitStack, name: str, store_type: type[Store]) -> tuple[Lane, Store]:
    lane = Lane(settings.dsn, name=name)
    stack.push_async_callback(lane.close)
    queue_id = settings.credentials.queue_id
    return lane, store_type(lane, consumer_name=settings.consumer_name, queue_id=queue_id)


async def _check_both(client: OrbitClient, settings: ConsumeSettings, probe: tuple[Lane, Store]) -> None:
    subscription = await client.get_subscription(settings.subscription_id)
    check_subscription(subscription, queue_id=settings.credentials.queue_id)
    await _check(probe)


async def _unless(signal: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do the work, or cancel it when the signal comes first; say whether it was done. Raises what the work raised."""
    working = asyncio.create_task(work, name="receiver-start")
    waiting = asyncio.create_task(signal.wait(), name="receiver-start-signal")
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (working, waiting):
            task.cancel()
        await asyncio.wait({working, waiting})
    if working.cancelled():
        return False
    working.result()
    return True


async def _check(probe: tuple[Lane, Store]) -> None:
    lane, store = probe
    await check_database(lane)
    await store.rehearse()


async def _run(consumer: EventConsumer, watch: Coroutine[Any, Any, Never], shutdown: Shutdown) -> None:
    """Run the consumer beside those who resume and stop it; all tasks end here."""
    running = asyncio.create_task(consumer.run(), name="receiver-consumer")
    watching = asyncio.create_task(watch, name="receiver-outage")
    helpers = [
        watching,
        asyncio.create_task(_stop_at(shutdown.drain, consumer, DRAIN_S - CLOSE_S), name="receiver-drain"),
        asyncio.create_task(_stop_at(shutdown.hard, consumer, 0), name="receiver-hard-stop"),
    ]
    try:
        await asyncio.wait({running, watching}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (running, *helpers):
            task.cancel()
        await asyncio.wait({running, *helpers})
    for task in (watching, running):
        # The watch never ends by itself: with an exception there would be nobody to resume the consumer.
        if not task.cancelled():
            await task


async def _stop_at(signal: asyncio.Event, consumer: EventConsumer, drain_s: float) -> None:
    await signal.wait()
    _log.info("draining", at_most_s=drain_s)
    await consumer.stop(drain_s)


def _report_end(consumer: ConsumerCounts, outcomes: Counter[Outcome]) -> None:
    _log.info(
        "stopped",
        received=consumer.received,
        acknowledged=consumer.acknowledged,
        failed=consumer.failed,
        released=consumer.released,
        pending=consumer.pending,
        reconnects=consumer.reconnects,
        **{str(outcome): outcomes[outcome] for outcome in Outcome},
    )

"""Consumes one subscription: takes deliveries, runs a handler for each, acknowledges what the handler finished.

`book` decides, `handling` runs handlers, `events` talks, `supervise` dials; this module joins them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from orbit.protocol import events_v1
from orbit.protocol.backoff import reconnect_delay
from orbit.protocol.errors import InvalidJSON, InvalidValue
from orbit.protocol.event import Event
from orbit.protocol.events_v1 import BATCH_MAX, CAPACITY_MAX, Hello, Released, Verdict
from orbit.protocol.limits import Limits
from orbit.protocol.values import new_id
from orbit.sdk.book import Book, ConsumerCounts, Lease, Report
from orbit.sdk.changes import Changes
from orbit.sdk.client import OrbitClient
from orbit.sdk.errors import InvalidConfiguration, OrbitError, SessionRefused, WrongQueue
from orbit.sdk.events import EventConnection
from orbit.sdk.handling import Handler, Handling, InvalidDelivery
from orbit.sdk.supervise import Timing, end, supervise, together

REPORTS_IN_FLIGHT: Final = 4
"""Frames of ACKs or releases without an answer. With fewer under way nothing waits; with more, the next batch grows."""

START_RESERVE_S: Final = 5.0
"""A waiting delivery with less than this left of its lease is given back: no handler could finish in time."""

START_RESERVE_SHARE: Final = 0.2
"""... or with less than this share of it, where the lease is so short that the reserve would eat it up."""

DRAIN_AFTER_FAILURE_S: Final = 5.0
"""How long running handlers may go on after the platform has refused this consumer for good."""

VERDICTS_RESERVE_S: Final = 1.0
"""The end of a drain, at most a fifth of it, that is kept for the last ACKs: handlers still running are cancelled."""

_log = logging.getLogger(__name__)


class EventConsumer:
    """Consumes one subscription until `stop()`.

    `handler` is called for every delivery, at most `concurrency` at a time; up to `prefetch` more wait. Returning is
    the ACK. Any exception means no ACK: the attempt is spent and the delivery comes again when its lease ends. Raising
    `Unavailable` also pauses the consumer. The handler is not cancelled at `delivery.deadline`, since a commit may be
    under way: the deadline is information, and the handler must bound its own work. Only a drain's end cancels it.

    A delivery may come again at any time, also to another consumer; the handler must recognise what it has done.
    Within one consumer the handler is never called for a delivery that it is working on or has finished.

    `on_invalid` is told of every event that cannot be accepted; only its own delivery fails. All methods belong to the
    event loop that runs `run()`.
    """

    def __init__(
        self,
        client: OrbitClient,
        subscription_id: str,
        handler: Handler,
        *,
        concurrency: int = 4,
        prefetch: int = 16,
        on_invalid: Callable[[InvalidDelivery], None] | None = None,
        limits: Limits | None = None,
        timing: Timing | None = None,
    ) -> None:
        """Raise InvalidConfiguration for numbers out of range; nothing is opened before `run()`.

        `limits` defaults to the client's; `timing` is the dial loop's.
        """
        if concurrency < 1 or prefetch < 0 or concurrency + prefetch > CAPACITY_MAX:
            raise InvalidConfiguration(
                f"concurrency: at least 1, prefetch: at least 0, together at most {CAPACITY_MAX}"
            )
        self._client = client
        self._subscription_id = subscription_id
        self._queue_id = client.credentials.queue_id
        self._on_invalid = on_invalid
        self._limits = limits or client.limits
        self._timing = timing or Timing()
        self._consumer_id = new_id()
        self._changes = Changes()
        self._book = Book(concurrency, prefetch)
        self._handling = Handling(self._book, handler, self._changes.notify, self.pause)
        self._bound = False  # the subscription was found to be bound to the configured queue
        self._sessions = 0
        self._connected = False
        self._paused = False
        self._confirmed: int | None = None  # the capacity that the platform has answered on this connection
        self._drain_until: float | None = None  # on the loop's clock
        self._running = False
        self._ended = asyncio.Event()

    @property
    def connected(self) -> bool:
        """Whether a session is open right now."""
        return self._connected

    @property
    def paused(self) -> bool:
        """Whether deliveries are held off until `resume()`."""
        return self._paused

    @property
    def counts(self) -> ConsumerCounts:
        """A snapshot of what became of the deliveries so far; exact at every moment."""
        return self._book.counts

    async def until(self, condition: Callable[[ConsumerCounts], bool]) -> ConsumerCounts:
        """Wait until the counts satisfy `condition` and return them. Waits for ever otherwise; cancelling is safe."""
        await self._changes.until(lambda: condition(self.counts))
        return self.counts

    def pause(self) -> None:
        """Take nothing more and give back what has not started; running handlers go on. Pausing twice is harmless."""
        if not self._paused:
            self._paused = True
            self._look()
            _log.info("subscription %s: paused", self._subscription_id)

    def resume(self) -> None:
        """Take deliveries again. Resuming what is not paused is harmless."""
        if self._paused:
            self._paused = False
            self._look()
            _log.info("subscription %s: resumed", self._subscription_id)

    async def stop(self, drain_s: float) -> None:
        """Stop within `drain_s` seconds and wait until `run()` is done.

        Takes nothing more, gives back what has not started, lets running handlers go on and cancels them shortly before
        the end, reports what finished and waits for the verdicts. A second call can only shorten the drain. Cancelling
        leaves the drain as it is. Not to be awaited by a handler, which the drain waits for.
        """
        until = asyncio.get_running_loop().time() + max(0.0, drain_s)
        self._drain_until = until if self._drain_until is None else min(until, self._drain_until)
        self._look()
        if self._running:
            await self._ended.wait()

    async def run(self) -> None:
        """Consume until `stop()`; once only.

        Raise WrongQueue when the subscription is not bound to the credentials' queue, HTTPError, SessionRefused or
        ProtocolMismatch when the platform refuses for good (401, 403, 404, 426, ...), after the running handlers were
        given five seconds. Everything else is waited out. Cancelling is safe: handlers are cancelled, the connection is
        closed, no task is left but that of a handler that does not let itself be cancelled.
        """
        if self._running or self._ended.is_set():
            raise RuntimeError("an EventConsumer runs once")
        self._running = True
        link = asyncio.create_task(self._link(), name="orbit-consumer-link")
        link.add_done_callback(lambda _: self._changes.notify())
        try:
            await self._changes.until(lambda: self._drain_until is not None or link.done())
            await self._drain(link)
        finally:
            self._drain_until = self._drain_until or asyncio.get_running_loop().time()
            self._look()
            link.cancel()
            try:
                await self._handling.cancel()
            finally:
                try:
                    await end([link])
                finally:
                    self._running = False
                    self._ended.set()
        if not link.cancelled():
            await link

    async def _drain(self, link: asyncio.Task[None]) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        if self._drain_until is None:
            self._drain_until = begun + DRAIN_AFTER_FAILURE_S
        self._look()

        def handlers_until() -> float:
            assert self._drain_until is not None
            return self._drain_until - min(VERDICTS_RESERVE_S, (self._drain_until - begun) / 5)

        await self._changes.until(lambda: self._book.running == 0, handlers_until)
        await self._handling.cancel()
        await self._changes.until(lambda: self._book.settled or link.done(), lambda: self._drain_until)

    async def _link(self) -> None:
        await supervise(self._session, timing=self._timing, waiting=self._report_wait)

    def _report_wait(self, error: OrbitError, delay: float) -> None:
        _log.warning(
            "subscription %s: %s: %s; dialling in %.1f s", self._subscription_id, type(error).__name__, error, delay
        )

    async def _session(self, welcomed: Callable[[], None]) -> None:
        if not self._bound:
            subscription = await self._client.get_subscription(self._subscription_id)
            self._check_queue(subscription.queue_id)
            self._bound = True
        channel = await self._client.open_channel(events_v1.PATH, events_v1.SUBPROTOCOL)
        connection = EventConnection(channel, self._limits, self._take)
        try:
            await together(connection.read(), self._converse(connection, welcomed))
        finally:
            self._connected = False
            self._confirmed = None
            self._book.lost()
            self._changes.notify()
            await connection.close()

    async def _converse(self, connection: EventConnection, welcomed: Callable[[], None]) -> None:
        hello = Hello(subscription_id=self._subscription_id, consumer_id=self._consumer_id)
        welcome = await connection.hello(hello)
        self._check_queue(welcome.queue_id)
        welcomed()
        self._sessions += 1
        if self._sessions > 1:
            self._book.reconnected()
        self._connected = True
        _log.info("subscription %s: connected", self._subscription_id)
        # What is owed from before goes first: nothing that was finished is delivered again.
        while batch := self._book.batch(BATCH_MAX, give_back=True):
            await self._report(connection, batch)
        await together(self._keep_capacity(connection), self._keep_reporting(connection))

    async def _keep_capacity(self, connection: EventConnection) -> None:
        """Announce the capacity at once, when it changes, and as the heartbeat."""
        loop = asyncio.get_running_loop()
        while True:
            capacity = self._book.capacity
            await connection.announce(capacity)
            self._confirmed = capacity
            self._changes.notify()
            beat = loop.time() + self._limits.heartbeat_s
            await self._changes.until(lambda: self._book.capacity != self._confirmed, beat)

    async def _keep_reporting(self, connection: EventConnection) -> None:
        slots = asyncio.Semaphore(REPORTS_IN_FLIGHT)
        async with asyncio.TaskGroup() as group:
            while True:
                await self._changes.until(lambda: self._book.has_batch(give_back=self._may_give_back()))
                await slots.acquire()
                if batch := self._book.batch(BATCH_MAX, give_back=self._may_give_back()):
                    group.create_task(self._report(connection, batch)).add_done_callback(lambda _: slots.release())
                else:
                    slots.release()

    def _may_give_back(self) -> bool:
        # Before the platform has confirmed capacity 0 it would deliver at once what is given back.
        return self._book.taking or self._confirmed == 0

    async def _report(self, connection: EventConnection, batch: tuple[Report, ...]) -> None:
        """Report until there are verdicts: a refusal for now costs a wait, not the connection."""
        failures = 0
        while True:
            try:
                verdicts = await _send(connection, batch)
                break
            except SessionRefused as error:
                if not error.temporary:
                    raise
                _log.warning("subscription %s: %s, reporting again", self._subscription_id, error)
            await self._timing.sleep(reconnect_delay(failures, self._timing.jitter()))
            failures += 1
        for verdict in self._book.settle(verdicts):
            _log.warning(
                "delivery %s epoch %d: the platform refused the report: %s",
                verdict.delivery_id,
                verdict.epoch,
                verdict.code,
            )
        self._changes.notify()

    def _take(self, delivery: events_v1.Delivery, deadline: float) -> None:
        try:
            event = Event.parse(delivery.event, limits=self._limits)
            if event.queue_id != self._queue_id:
                raise InvalidValue("event.queue_id", "is not the subscription's queue")
        except (InvalidJSON, InvalidValue) as error:
            self._book.reject(delivery.proof)
            self._handling.invalid(self._on_invalid, delivery, error)
        else:
            lease_s = (delivery.lease_until - delivery.server_time).total_seconds()
            reserve_s = min(START_RESERVE_S, lease_s * START_RESERVE_SHARE)
            self._book.take(
                Lease(
                    proof=delivery.proof,
                    event=event,
                    attempt=delivery.attempt,
                    attempt_budget=delivery.attempt_budget,
                    deadline=deadline,
                    start_by=deadline - reserve_s,
                )
            )
        self._look()

    def _look(self) -> None:
        """Bring the book in line with pause and drain, start what can start, wake who waits."""
        if self._paused or self._drain_until is not None:
            self._book.stop_taking()
        else:
            self._book.taking = True
        self._handling.look()
        self._changes.notify()

    def _check_queue(self, queue_id: str) -> None:
        if queue_id != self._queue_id:
            raise WrongQueue(self._subscription_id, queue_id, self._queue_id)


async def _send(connection: EventConnection, batch: tuple[Report, ...]) -> tuple[Verdict, ...]:
    if batch[0].started is None:
        return tuple(await connection.acknowledge([report.proof for report in batch]))
    releases = [Released(proof=report.proof, started=bool(report.started)) for report in batch]
    return tuple(await connection.release(releases))

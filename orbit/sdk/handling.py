"""Runs the handlers of what the book says may run; the handlers' tasks belong here."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

from orbit.protocol import events_v1
from orbit.protocol.errors import InvalidJSON, InvalidValue
from orbit.protocol.event import Event
from orbit.protocol.values import parse_id
from orbit.sdk.book import Book, Held
from orbit.sdk.errors import Unavailable

CANCEL_S: Final = 1.0
"""How long a cancelled handler may take to end before it is left alone."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What a handler gets. `attempt` counts from 1 to `attempt_budget`.

    `deadline` is the end of the lease on `time.monotonic()`, counted from the receipt and less a margin. After it the
    platform may deliver the event to another consumer; an ACK still counts for as long as nobody else was given it.
    """

    delivery_id: str
    event: Event
    attempt: int
    attempt_budget: int
    deadline: float


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidDelivery:
    """A delivery whose event cannot be accepted. `event_id` is None where even that is unreadable."""

    delivery_id: str
    event_id: str | None
    attempt: int
    attempt_budget: int
    error: InvalidJSON | InvalidValue = field(compare=False)


Handler: TypeAlias = Callable[[Delivery], Awaitable[None]]


class Handling:
    """The running handlers. `changed` is called after one has ended, `pause` when one has raised Unavailable."""

    def __init__(self, book: Book, handler: Handler, changed: Callable[[], None], pause: Callable[[], None]) -> None:
        self._book = book
        self._handler = handler
        self._changed = changed
        self._pause = pause
        self._tasks: set[asyncio.Task[None]] = set()
        self._deaf: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def look(self) -> None:
        """Start what can start, give back what has waited too long, and look again when the next one has."""
        now = time.monotonic()
        while (held := self._book.start(now)) is not None:
            task = asyncio.create_task(self._handle(held), name=f"orbit-handler-{held.lease.proof.delivery_id}")
            self._tasks.add(task)
            task.add_done_callback(partial(self._ended, held))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        start_by = self._book.next_start_by
        if start_by is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, start_by - now), self._late)

    async def cancel(self) -> None:
        """Cancel the running handlers and wait for them, `CANCEL_S` at most: one that goes on is left alone, loudly."""
        tasks = self._tasks - self._deaf
        for task in tasks:
            task.cancel()
        if tasks:
            _, deaf = await asyncio.wait(tasks, timeout=CANCEL_S)
            for task in deaf:
                self._deaf.add(task)
                task.add_done_callback(self._deaf.discard)
                _log.error("%s does not end although it was cancelled; it is left alone", task.get_name())

    def invalid(
        self,
        callback: Callable[[InvalidDelivery], None] | None,
        delivery: events_v1.Delivery,
        error: InvalidJSON | InvalidValue,
    ) -> None:
        """Report an event that cannot be accepted. What the callback raises is logged, not passed on."""
        invalid = InvalidDelivery(
            delivery_id=delivery.proof.delivery_id,
            event_id=_event_id(delivery.event),
            attempt=delivery.attempt,
            attempt_budget=delivery.attempt_budget,
            error=error,
        )
        _log.warning("delivery %s: invalid event: %s", invalid.delivery_id, error)
        if callback is None:
            return
        try:
            callback(invalid)
        except Exception as failure:  # noqa: BLE001 - the caller's code; the reader must go on
            _log.error("delivery %s: on_invalid raised %s", invalid.delivery_id, type(failure).__name__)

    async def _handle(self, held: Held) -> None:
        lease = held.lease
        delivery = Delivery(
            delivery_id=lease.proof.delivery_id,
            event=lease.event,
            attempt=lease.attempt,
            attempt_budget=lease.attempt_budget,
            deadline=lease.deadline,
        )
        try:
            await self._handler(delivery)
        except BaseException as error:
            self._book.fail(held)
            _log.warning("delivery %s: the handler raised %s", delivery.delivery_id, type(error).__name__)
            if isinstance(error, Unavailable):
                self._pause()
            # A handler's own CancelledError, or ours at the end of a drain, ends here: the task is at its end.
            if not isinstance(error, Exception | asyncio.CancelledError):
                raise
        else:
            self._book.finish(held)
        finally:
            self.look()
            self._changed()

    def _ended(self, held: Held, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        # Only before its first step: from then on `_handle` keeps every end to itself.
        if task.cancelled():
            self._book.fail(held)
            self._changed()

    def _late(self) -> None:
        self._timer = None
        self.look()
        self._changed()


def _event_id(event: object) -> str | None:
    try:
        return parse_id(event.get("event_id"), "event_id") if isinstance(event, dict) else None
    except InvalidValue:
        return None

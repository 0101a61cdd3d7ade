"""The attempts that a runner holds: from the assignment to the end, each in a task of its own."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from orbit.protocol.assignment_v1 import Assignment, Cancellation
from orbit.protocol.grant import local_deadline
from orbit.protocol.limits import Limits
from orbit.protocol.values import new_id
from orbit.protocol.worker_v1 import Capability
from orbit.sdk.changes import Changes
from orbit.sdk.handlers import RegisteredHandler, StopReason
from orbit.sdk.runner_counts import RunnerCounts, Tally
from orbit.sdk.runner_link import Link
from orbit.sdk.runner_live import Execution, Identity, Live
from orbit.sdk.runner_pipeline import Pipeline
from orbit.sdk.runner_rules import room
from orbit.sdk.runner_threads import Threads

HELD_FACTOR: Final = 4
"""Attempts held for each place at most; what is assigned beyond is dropped, and its lease runs out."""

CANCEL_S: Final = 1.0
"""How long what was cancelled at the very end may take."""

_log = logging.getLogger(__name__)


class Places:
    """At most `most` handlers at a time, in the order in which they came."""

    def __init__(self, most: int, changes: Changes) -> None:
        self._most = most
        self._taken = 0
        self._changes = changes
        self.closed = False

    async def enter(self, give_up: Callable[[], bool], until: float) -> bool:
        """Wait for a place, until a moment or until it is no longer wanted; says whether there was one."""
        await self._changes.until(lambda: give_up() or self._taken < self._most, until)
        # Nothing is awaited between the look and the entry: two that saw one place cannot both take it.
        if give_up() or self._taken >= self._most:
            return False
        self._taken += 1
        return True

    def leave(self) -> None:
        """Give the place back."""
        self._taken -= 1
        self._changes.notify()


class Attempts:
    """The held attempts; the link's holder."""

    def __init__(self, handlers: Iterable[RegisteredHandler], concurrency: int, limits: Limits) -> None:
        self._handlers: Mapping[Capability, RegisteredHandler] = MappingProxyType(
            {one.capability: one for one in handlers}
        )
        self._concurrency = concurrency
        self._limits = limits
        self.changes = Changes()
        self._link: Link | None = None
        self._pipeline: Pipeline | None = None
        self._places = Places(concurrency, self.changes)
        self._threads = Threads(concurrency)
        self._tally = Tally(self.changes.notify)
        self._live: dict[Identity, Live] = {}
        self._tasks: dict[asyncio.Task[Execution], Live] = {}
        self.defect: BaseException | None = None
        """What went wrong in the runner itself; it must end."""

    def use(self, link: Link) -> None:
        """Join the link, before it runs."""
        self._link = link
        self._pipeline = Pipeline(link, self._places, self._threads, self._tally, self._limits)

    @property
    def counts(self) -> RunnerCounts:
        """A snapshot of the counts."""
        counts, held = self._tally.counts, self._live.values()
        judged = sum(live.judged and not live.settled for live in held)
        sessions = 0 if self._link is None else self._link.sessions
        open_starts = counts.started - counts.confirmed - counts.refused - counts.abandoned
        return replace(
            counts,
            waiting=counts.assigned - counts.dropped - counts.started,
            calling=open_starts - judged,
            reporting=judged,
            running=sum(live.running for live in held),
            reconnects=max(0, sessions - 1),
        )

    @property
    def room(self) -> int:
        """The capacity to announce."""
        held = self._live.values()
        return room(
            self._concurrency,
            lingering=sum(live.judged and live.running for live in held),
            reporting=sum(live.judged and not live.settled for live in held),
        )

    @property
    def draining(self) -> bool:
        """Whether nothing new starts."""
        return self._places.closed

    @property
    def over(self) -> bool:
        """Whether nothing is held any more."""
        return not self._tasks

    @property
    def settled(self) -> bool:
        """Whether everything was told to the platform; handlers may go on that were reported without their word."""
        return all(live.settled for live in self._tasks.values())

    def known(self) -> list[Live]:
        """The attempts that a new connection must resume."""
        return [live for live in self._live.values() if not live.settled]

    def take(self, assignment: Assignment) -> None:
        """Begin an attempt that was assigned."""
        assert self._pipeline is not None, "the link runs after `use`"
        received_at = time.monotonic()
        lease, attempt = assignment.lease, assignment.attempt
        self._tally.count(assigned=1)
        if attempt.identity in self._live or len(self._tasks) >= self._concurrency * HELD_FACTOR:
            _log.error("attempt %s: assigned twice, or beyond every bound; dropped", attempt.attempt_id)
            self._tally.count(dropped=1)
            return
        assert lease.lease_until is not None, "of an assignment"
        start_by = local_deadline(received_at, lease.lease_until, lease.server_time, self._limits.local_margin_s)
        live = Live(attempt, start_by, self.changes.notify)
        execution = Execution(
            task=assignment.task,
            handler=self._handlers[Capability.of(assignment.task)],
            live=live,
            start_by=start_by,
            start_id=new_id(),
            finish_id=new_id(),
        )
        task = asyncio.create_task(self._pipeline.run(execution), name=f"orbit-runner-attempt {attempt.attempt_id}")
        self._live[live.identity] = live
        self._tasks[task] = live
        task.add_done_callback(self._ended)

    def cancel(self, cancellation: Cancellation) -> None:
        """Somebody asked for the end of exactly this attempt; another one of the same task is another matter."""
        live = self._live.get(cancellation.identity)
        if live is not None:
            _log.info("attempt %s: its task's cancellation was asked for", cancellation.attempt_id)
            live.cancel()

    def drain(self) -> None:
        """Start nothing more. What runs goes on; what has not started is dropped."""
        self._places.closed = True
        self.changes.notify()

    def stop(self) -> None:
        """Tell every handler to stop, as the worker ends."""
        for live in self._live.values():
            live.stop(StopReason.SHUTDOWN)

    async def close(self) -> None:
        """Cancel what is left; the platform finds out by the leases. A handler that does not end is left alone."""
        self.drain()
        self.stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_S)
        until = asyncio.get_running_loop().time() + CANCEL_S
        await self.changes.until(lambda: not any(live.running for live in self._live.values()), until)
        for live in self._live.values():
            if live.running:
                _log.error("attempt %s: its handler does not end; it is left alone", live.attempt.attempt_id)
        self._threads.close()

    def _ended(self, task: asyncio.Task[Execution]) -> None:
        live = self._tasks.pop(task)
        if not live.running:
            del self._live[live.identity]
        if not task.cancelled() and (error := task.exception()) is not None:
            self.defect = self.defect or error
        self.changes.notify()

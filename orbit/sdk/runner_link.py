"""A runner's connection: dials, resumes what is held, keeps the capacity announced, listens, dials again.

Whoever has something to ask about an attempt asks through `Link.ask`, which lives as long as the runner: it waits for
a connection on which all attempts were resumed, and repeats the same message until it was answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, NoReturn, Protocol, TypeVar

from orbit.protocol.assignment_v1 import Assignment, Cancellation
from orbit.protocol.attempt_v1 import Attempt
from orbit.protocol.backoff import reconnect_delay
from orbit.protocol.limits import Limits
from orbit.protocol.values import new_id
from orbit.sdk.changes import Changes
from orbit.sdk.errors import OrbitError, WorkerDisconnected, WorkerError
from orbit.sdk.runner_health import Vitals
from orbit.sdk.runner_rules import AGAIN_MAX_S, Asked, Then, after
from orbit.sdk.supervise import Timing, supervise, together
from orbit.sdk.worker import WorkerConnection
from orbit.sdk.worker_lease import WorkerLease

HEARTBEATS_IN_FLIGHT: Final = 1
RENEWALS_SHARE: Final = 4
"""One in so many of the other operations in flight may be a renewal or a resumption; the rest are starts and reports.
So neither can keep the other waiting, nor both the heartbeat."""

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Known(Protocol):
    """An attempt that a new connection must resume."""

    @property
    def attempt(self) -> Attempt:
        """The proof."""

    def granted(self, lease: WorkerLease) -> None:
        """What holds for it now."""

    def lost(self) -> None:
        """The platform knows nothing of it any more."""


class Holder(Protocol):
    """Who holds the attempts."""

    @property
    def room(self) -> int:
        """The capacity to announce."""

    @property
    def draining(self) -> bool:
        """Whether no claims will ever follow."""

    def known(self) -> Sequence[Known]:
        """The attempts that are not over."""

    def take(self, assignment: Assignment) -> None:
        """A task was assigned; must not raise."""

    def cancel(self, cancellation: Cancellation) -> None:
        """Somebody asked for an attempt's end; must not raise."""


class Refused(Exception):
    """An operation was refused for good; `then` says whether another report may be taken."""

    def __init__(self, then: Then, code: str) -> None:
        super().__init__(then, code)
        self.then = then
        self.code = code


class GaveUp(Exception):
    """An operation was not asked any more, as its asker wanted it."""


class Link:
    """The runner's sessions, one after the other. `run()` must run for as long as it is used."""

    def __init__(
        self,
        dial: Callable[[], Awaitable[WorkerConnection]],
        holder: Holder,
        changes: Changes,
        *,
        limits: Limits,
        timing: Timing,
        vitals: Vitals,
    ) -> None:
        """`changes` is the holder's: what it says of room, draining and its attempts is asked again after each."""
        self._dial = dial
        self._holder = holder
        self._limits = limits
        self._timing = timing
        self._vitals = vitals
        self._changes = changes
        self.sessions = 0
        self._open: WorkerConnection | None = None  # with all attempts resumed
        self._spoiled: OrbitError | None = None  # the session must end although its connection is open
        self._announced: tuple[int, bool] | None = None
        others = max(2, limits.control_in_flight - HEARTBEATS_IN_FLIGHT)
        renewals = max(1, others // RENEWALS_SHARE)
        self._renewals = asyncio.Semaphore(renewals)
        self._commands = asyncio.Semaphore(others - renewals)

    @property
    def drained(self) -> bool:
        """Whether the platform has confirmed on this connection that no claims follow."""
        return self._announced is not None and self._announced[1]

    async def run(self) -> None:
        """Keep a session alive; ends only by raising what dialling again would not change. Cancelling closes it."""
        await supervise(self._session, timing=self._timing, waiting=self._report_wait)

    async def ask(
        self,
        asked: Asked,
        operation: Callable[[WorkerConnection], Awaitable[T]],
        *,
        give_up: Callable[[bool], bool],
        until: float | None = None,
    ) -> T:
        """Carry out an operation and return its answer, over as many connections as that takes.

        `give_up(unsure)` is asked before each try and after each change; `unsure` says that an earlier try may have
        been carried out, and before there was one it is asked at `until`, too. Raises Refused and GaveUp. Cancelling it
        while it is under way ends the connection.
        """
        gate = self._commands if asked in (Asked.START, Asked.FINISH) else self._renewals
        loop = asyncio.get_running_loop()
        failures, unsure = 0, False

        def tired() -> bool:
            return give_up(unsure)

        def tired_at() -> float | None:
            return None if unsure else until

        while True:
            await self._changes.until(lambda: self._open is not None or tired(), tired_at)
            async with gate:
                connection = self._open
                if tired():
                    raise GaveUp
                if connection is None:
                    continue
                try:
                    return await operation(connection)
                except OrbitError as error:
                    then = after(asked, error)
                    code = error.code if isinstance(error, WorkerError) else type(error).__name__
                    if then is Then.RECONNECT:
                        self._leave(connection, error)
            unsure = unsure or then in (Then.UNSURE, Then.RECONNECT)
            if then in (Then.GIVE_UP, Then.REPLACE):
                raise Refused(then, code)
            if then is not Then.RECONNECT:
                wait_s = min(AGAIN_MAX_S, reconnect_delay(failures, self._timing.jitter()))
                failures += 1
                await self._changes.until(tired, loop.time() + wait_s)

    def _leave(self, connection: WorkerConnection, error: OrbitError) -> None:
        """Let nothing more be asked on a connection that has failed an operation."""
        if self._open is connection:
            self._open = None
            self._spoiled = connection.error or error
            self._changes.notify()

    def _report_wait(self, error: OrbitError, delay: float) -> None:
        _log.warning("worker: %s: %s; dialling in %.1f s", type(error).__name__, error, delay)

    async def _session(self, welcomed: Callable[[], None]) -> None:
        connection = await self._dial()
        try:
            welcomed()
            self._vitals.welcomed()
            self.sessions += 1
            await together(self._until_over(connection), self._until_spoiled(), self._converse(connection))
        finally:
            self._open = self._spoiled = self._announced = None
            self._vitals.lost()
            self._changes.notify()
            await connection.close()

    async def _until_over(self, connection: WorkerConnection) -> NoReturn:
        await connection.done()
        assert connection.error is not None, "the reader ends with a reason"
        raise connection.error

    async def _until_spoiled(self) -> NoReturn:
        await self._changes.until(lambda: self._spoiled is not None)
        assert self._spoiled is not None
        raise self._spoiled

    async def _converse(self, connection: WorkerConnection) -> None:
        known = self._holder.known()
        if known:
            await together(*(self._resume(connection, one) for one in known))
        self._open = connection
        self._changes.notify()
        _log.info("worker: connected, %d attempts resumed", len(known))
        await self._all_of(
            {
                "heartbeat": self._keep_capacity(connection),
                "assignments": _listen(connection.next_assignment, self._holder.take),
                "cancellations": _listen(connection.next_cancellation, self._holder.cancel),
            }
        )

    async def _all_of(self, parts: dict[str, Coroutine[Any, Any, NoReturn]]) -> NoReturn:
        """Run what a session is made of until one part has ended, then end the others and raise why.

        A part that was cancelled alone ends the session, too: without it the session would look alive and take nothing.
        """
        tasks = [asyncio.create_task(part, name=f"orbit-runner-{name}") for name, part in parts.items()]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            failures = [task.exception() for task in tasks if not task.cancelled()]
        for name, task in zip(parts, tasks, strict=True):
            if task in done and task.cancelled():
                self._vitals.deafened(name)
                raise WorkerDisconnected(f"the session's part for {name} has ended alone")
        raise next(failure for failure in failures if failure is not None)

    async def _resume(self, connection: WorkerConnection, known: Known) -> None:
        failures = 0
        while True:
            try:
                async with self._renewals:
                    lease = await connection.resume(new_id(), known.attempt)
            except OrbitError as error:
                then = after(Asked.RESUME, error)
                if then is Then.RECONNECT:
                    raise
            else:
                known.granted(lease)
                return
            if then is Then.GIVE_UP:
                known.lost()
                return
            await self._wait(failures)
            failures += 1

    async def _keep_capacity(self, connection: WorkerConnection) -> NoReturn:
        """Announce the capacity at once, when it changes, and as the heartbeat."""
        loop = asyncio.get_running_loop()
        sequence = 0
        while True:
            sequence += 1
            now = self._now()
            await self._announce(connection, sequence, now)
            self._announced = now
            self._vitals.acknowledged()
            self._changes.notify()
            beat = loop.time() + self._limits.heartbeat_s
            await self._changes.until(lambda: self._now() != self._announced, beat)

    def _now(self) -> tuple[int, bool]:
        draining = self._holder.draining
        return 0 if draining else self._holder.room, draining

    async def _announce(self, connection: WorkerConnection, sequence: int, now: tuple[int, bool]) -> None:
        message_id, failures = new_id(), 0
        while True:
            try:
                await connection.capacity(message_id, sequence=sequence, capacity=now[0], drain=now[1])
            except WorkerError as error:
                # The platform cannot reach its database: what runs goes on, and so does this session.
                if after(Asked.RENEW, error) is not Then.UNSURE:
                    raise
            else:
                return
            await self._wait(failures)
            failures += 1

    async def _wait(self, failures: int) -> None:
        await self._timing.sleep(min(AGAIN_MAX_S, reconnect_delay(failures, self._timing.jitter())))


async def _listen(following: Callable[[], Awaitable[T]], take: Callable[[T], None]) -> NoReturn:
    while True:
        take(await following())

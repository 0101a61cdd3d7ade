"""What stands behind a connection of `pulse.worker.v1`: one session of one worker process.

The worker's capacity is how many attempts its instance holds at most; how many it holds is counted in the database, so
a reconnect books nothing twice. Nothing is dispatched before the session's first capacity is confirmed: until then the
worker resumes what it holds. A session that a newer one of the same instance has fenced is told so and ended, at its
next request or at the pusher's next look.

When the connection ends, attempts keep their leases: the worker comes back and resumes them, or they run out.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from orbit.mysql.errors import DatabaseError
from orbit.protocol.attempt_v1 import Attempt, Finish
from orbit.protocol.errors import InvalidValue
from orbit.protocol.worker_v1 import Capacity
from orbit.runtime.logs import get_logger
from orbit.server.services import attempts, claim, workers
from orbit.server.services.claim import Next
from orbit.server.wake import instance_key, queue_key
from orbit.server.web.spliced import check_spliced

if TYPE_CHECKING:
    from orbit.protocol.session import Requested
    from orbit.protocol.worker_v1 import Hello, Welcome
    from orbit.server.parts import Platform
    from orbit.server.services.access import Caller
    from orbit.server.services.workers import Session
    from orbit.server.wake import Watch
    from orbit.server.web.socket import Push, Reply

ASSIGN: Final = "task.assign"
CANCEL: Final = "task.cancel"
SOON: Final = 0.1
"""Share of `Limits.node_poll_s` after which tasks that others were at are looked at again."""

_log = get_logger(__name__)


class Worker:
    """One connection's worker: a `Service` of the socket loop."""

    def __init__(self, platform: Platform, caller: Caller) -> None:
        self._platform = platform
        self._caller = caller
        # Held while a capacity is confirmed and while tasks are claimed and pushed: what is pushed after the
        # confirmation of a capacity never exceeds it.
        self._pushing = asyncio.Lock()
        self._confirmed = False
        self._told: set[str] = set()
        """Attempts whose cancellation this session was told of; forgotten when they end."""
        self._unstarted: set[str] = set()
        """Attempts that this session was given and has not started: a cancellation ends such a one at once. Empty for
        a worker that did not ask to be told."""
        self._watch: Watch | None = None
        self._greeted: Session | None = None

    async def greet(self, hello: Hello) -> Welcome:
        """Begin the session. Raises ApiError as `workers.register` does."""
        self._greeted, welcome = await workers.register(self._platform, self._caller, hello)
        _log.info("worker greeted", instance_id=hello.instance_id, revision=welcome.revision)
        return welcome

    async def serve(self, request: Requested, reply: Reply) -> None:
        """Confirm a capacity, or carry out a command. Raises ApiError SESSION_FENCED when the session is over."""
        match request.type, request.body:
            case _, Capacity() as capacity:
                async with self._pushing:
                    await reply(await workers.announce(self._platform, self._session, capacity))
                    self._confirmed = True
                self._look()
            case "worker.resume", Attempt() as attempt:
                await reply(await attempts.resume(self._platform, self._session, attempt))
            case "task.start", Attempt() as attempt:
                await reply(await attempts.start(self._platform, self._session, request.message_id, attempt))
                self._unstarted.discard(attempt.attempt_id)
            case "task.renew", Attempt() as attempt:
                await reply(await attempts.renew(self._platform, self._session, request.message_id, attempt))
            case "task.finish", Finish() as report:
                await reply(await attempts.finish(self._platform, self._session, request.message_id, report))
            case _:
                raise TypeError("the vocabulary has a request that nobody serves")

    async def push_all(self, push: Push) -> None:
        """Push cancellations, and claim and push tasks while there is room. Raises ApiError SESSION_FENCED."""
        keys = queue_key(self._session.queue_id), instance_key(self._session.instance_id)
        poll_s = self._platform.limits.node_poll_s
        with self._platform.wake.watch(*keys) as watch:
            self._watch = watch
            while True:
                watch.arm()
                match await self._round(push):
                    case Next.AT_ONCE:
                        pass
                    case Next.SOON:
                        await asyncio.sleep(SOON * poll_s)
                    case Next.LATER:
                        await watch.wait(poll_s)

    async def _round(self, push: Push) -> Next:
        """Look once, and push what is found."""
        try:
            async with self._pushing:
                return await self._look_and_push(push)
        except DatabaseError as error:
            # What an unconfirmed COMMIT may have leased comes back when its lease is over.
            _log.warning("claim failed", error=type(error).__name__, errno=error.errno, kind=error.kind)
            return Next.LATER

    async def _look_and_push(self, push: Push) -> Next:
        situation = await workers.look(self._platform, self._session)
        if not self._confirmed:
            return Next.LATER
        if self._unstarted or (situation.held and self._session.cancellation_notifications):
            await self._cancel(push)
        if situation.room == 0 or self._platform.draining.is_set():
            return Next.LATER
        claimed = await claim.claim(self._platform, self._session, situation)
        for assignment in claimed.assignments:
            if self._session.cancellation_notifications:
                self._unstarted.add(assignment.attempt.attempt_id)
            try:
                await check_spliced(assignment.task.payload, "body.task.payload", self._platform.limits)
                await push(ASSIGN, assignment)
            except InvalidValue as error:
                # No frame can hold it: its attempts end unstarted, in sight, and its neighbours go on.
                _log.error("task cannot be sent", task_id=assignment.task.task_id, reason=str(error))
        return claimed.then

    async def _cancel(self, push: Push) -> None:
        """Tell which attempts are to end, each once in this session."""
        asked, ended = await workers.cancellations(self._platform, self._session, self._unstarted)
        for one in asked:
            if one.attempt_id not in self._told:
                await push(CANCEL, one)
        self._unstarted -= ended
        self._told = {one.attempt_id for one in asked} - ended

    def _look(self) -> None:
        if self._watch is not None:
            self._watch.notify()

    @property
    def _session(self) -> Session:
        assert self._greeted is not None, "the socket loop greets first"
        return self._greeted

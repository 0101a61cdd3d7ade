"""A worker's connection: takes assignments, asks for permission to run them, reports what became of them.

It starts no handler, keeps no lease alive and dials no second time: that is its caller's. What it guarantees is that a
request is sent at most once, that its outcome is reported honestly, and that memory stays bounded.
Sources: seed worker-sdk sections 2 to 6, seed worker-contract.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

from orbit.protocol.assignment_v1 import Assignment, Cancellation
from orbit.protocol.attempt_v1 import Attempt, Finish
from orbit.protocol.errors import InvalidValue
from orbit.protocol.limits import Limits
from orbit.protocol.result import result_text
from orbit.protocol.session import Push
from orbit.protocol.values import Secret, new_id
from orbit.protocol.vocabulary import Body
from orbit.protocol.worker_v1 import PATH, SUBPROTOCOL, VOCABULARY, Capability, Capacity, Hello, Welcome
from orbit.sdk.channel import Channel
from orbit.sdk.conversation import Conversation
from orbit.sdk.errors import InvalidRequest, OrbitError, TransportError, WorkerClosed, WorkerTimeout
from orbit.sdk.worker_errors import lost, worker_error
from orbit.sdk.worker_lease import WorkerLease, WorkerResult, confirmed, confirmed_result
from orbit.sdk.worker_unread import Unread

WorkerRegistration: TypeAlias = Hello
"""Who works: made once in a process by `new_worker_registration` and used for every dial."""

_ASSIGN: Final = "task.assign"


def new_worker_registration(
    queue_id: str,
    capacity: int,
    capabilities: Iterable[Capability],
    *,
    cancellation_notifications: bool = False,
    concurrency_keys: bool = False,
) -> WorkerRegistration:
    """Give this process an identity and a secret of its own, for all its connections.

    Make one in each process and never hand it to another: a dial fences the earlier session of the same identity.
    `capacity`, 1 to 1000, is the most that any later `WorkerConnection.capacity` may ask for; the 1 to 64 capabilities
    are sorted. Raises InvalidRequest, also when one stands there twice.
    """
    registration = Hello(
        instance_id=new_id(),
        instance_secret=Secret.new(),
        queue_id=queue_id,
        capacity=capacity,
        capabilities=tuple(sorted(capabilities)),
        cancellation_notifications=cancellation_notifications,
        concurrency_keys=concurrency_keys,
    )
    _check(registration)
    return registration


def new_worker_message_id() -> str:
    """Make the id of one new operation; one whose outcome is unknown is reported again under the id it had."""
    return new_id()


class WorkerConnection:
    """One session of a worker, made by `OrbitClient.dial_worker`; use it in one event loop, as `async with`.

    A control operation - `capacity`, `start`, `renew`, `finish`, `resume` - takes the caller's message id first and
    lasts at most ten seconds, from waiting for its turn to the answer. It raises

    - WorkerError: the platform refused it; `code` says why. UNAVAILABLE and INTERNAL leave the outcome unknown;
    - InvalidRequest, WorkerBusy or DuplicateMessage: it was not sent, and the connection is as before;
    - WorkerTimeout when the ten seconds were over, WorkerDisconnected, WorkerProtocolError, WorkerBackpressure or
      WorkerClosed: the connection is over. What was sent may have been carried out: dial again with the same
      registration, `resume` the attempt, and repeat the operation with the same id and content.

    Cancelling an operation before it was sent takes it back; after that it ends the connection, and the outcome is
    unknown. What was raised holds no secret, payload or result, its traceback's locals included.
    """

    def __init__(self, channel: Channel, registration: WorkerRegistration, limits: Limits) -> None:
        """Take over an open channel; `greet` must follow. Use `OrbitClient.dial_worker`."""
        self._registration = registration
        self._limits = limits
        self._conversation = Conversation(channel, VOCABULARY, limits, self._take)
        self._assignments: Unread[Assignment] = Unread("assignments", limits.assignment_buffer, lambda: self.error)
        self._cancellations: Unread[Cancellation] = Unread(
            "cancellations", limits.cancellation_buffer, lambda: self.error
        )
        self._welcome: Welcome | None = None
        self._reader = asyncio.create_task(self._read(), name="orbit-worker-reader")

    @classmethod
    async def dial(
        cls,
        open_channel: Callable[[str, str], Awaitable[Channel]],
        registration: WorkerRegistration,
        limits: Limits,
    ) -> Self:
        """Open a channel and greet the platform, within `limits.handshake_s` for both: `OrbitClient.dial_worker`."""
        _check(registration)
        connection: Self | None = None
        try:
            async with asyncio.timeout(limits.handshake_s):
                connection = cls(await open_channel(PATH, SUBPROTOCOL), registration, limits)
                await connection._greet()
                return connection
        except BaseException as error:
            if connection is not None:
                await connection.close()
            if not isinstance(error, OrbitError | TimeoutError):
                raise
            failure = _dial_failure(error, opened=connection is not None)
        raise failure

    def __repr__(self) -> str:
        return f"WorkerConnection(instance_id={self._registration.instance_id!r}, error={self.error!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def welcome(self) -> Welcome:
        """The platform's answer to the hello, as it was when the connection was opened."""
        assert self._welcome is not None, "dial gives no connection without it"
        return self._welcome

    @property
    def error(self) -> OrbitError | None:
        """Why the connection is over, None while it is open.

        WorkerClosed after `close`; WorkerError when the platform ended the session, for instance with SESSION_FENCED;
        WorkerBackpressure, WorkerProtocolError or WorkerDisconnected.
        """
        over = self._conversation.over
        # Raised again and again, one error would collect the frames of all.
        return None if over is None else worker_error(over).with_traceback(None)

    async def done(self) -> None:
        """Wait until the read loop has ended; `error` then says why. Cancelling only stops waiting."""
        await asyncio.wait([self._reader])

    async def close(self) -> None:
        """End the connection at once; bounded to a second, safe to repeat, cancelling cuts it.

        It calls nothing back that was sent, and is no drain: operations under way fail with WorkerClosed, their
        outcomes unknown; what was assigned goes to somebody else when its lease is over.
        """
        self._end(WorkerClosed("closed by this end"))
        await self._conversation.close()
        await asyncio.wait([self._reader])

    async def capacity(self, message_id: str, *, sequence: int, capacity: int, drain: bool) -> Welcome:
        """Say how many tasks this worker holds at most, in all, and renew the session of 45 seconds; no lease.

        `sequence` starts at 1 on each connection and grows; the same one may be repeated with the same content. The
        first answer opens the connection for assignments. Zero stops new ones and gives nothing back. `drain` is never
        taken back, not on another connection either: the platform refuses that with STATE_CONFLICT.
        """
        body = Capacity(sequence=sequence, capacity=capacity, drain=drain)
        welcome: Welcome = await self._ask("worker.capacity", body, message_id)
        return welcome

    async def next_assignment(self) -> Assignment:
        """Wait for the next task. It is only reserved: its handler may run after `start` gives an execution deadline.

        Read always: the ninth that nobody waits for ends the connection with WorkerBackpressure, and the platform
        gives the work to somebody. Raises what `error` holds when the connection is over, and gives nothing more then.
        Cancelling only stops waiting and loses nothing.
        """
        return await self._assignments.next()

    async def next_cancellation(self) -> Cancellation:
        """Wait for the next wish that a task end; stop the handler of exactly that attempt, and report.

        As `next_assignment`, with 32 unread. Raises InvalidRequest when the registration did not ask for them. It is a
        hint: after a new dial only `resume` and `renew` tell what was asked before.
        """
        if not self._registration.cancellation_notifications:
            raise InvalidRequest("cancellation_notifications: the registration does not ask for them")
        return await self._cancellations.next()

    async def start(self, message_id: str, attempt: Attempt) -> WorkerResult:
        """Ask for permission to run; run only while `lease.execution_deadline()` of the answer gives one.

        The receipt alone permits nothing: it may be an old one. RATE_LIMITED: ask again with the same id while the
        lease lasts.
        """
        return await self._command("task.start", attempt, message_id)

    async def renew(self, message_id: str, attempt: Attempt) -> WorkerResult:
        """Extend the lease; each renewal is a new operation with a new message id. An old id only repeats its receipt.

        The answer revives no handler that was stopped because its deadline had passed.
        """
        return await self._command("task.renew", attempt, message_id)

    async def finish(self, message_id: str, report: Finish) -> WorkerResult:
        """Report what became of an attempt. APPLIED: it counts; EVIDENCE_ONLY: it was kept and decides nothing.

        `report.result` is JSON text, not null, of at most 256 KiB as canonical text and 28 levels, in which numbers
        keep their text; anything else raises InvalidRequest before anything is sent.
        """
        return await self._command("task.finish", _checked(report), message_id)

    async def resume(self, message_id: str, attempt: Attempt) -> WorkerLease:
        """Ask what an attempt of an earlier connection may do now. It extends nothing; possible before `capacity`."""
        called_at = time.monotonic()
        lease = await self._ask("worker.resume", attempt, message_id)
        return confirmed(lease, called_at, self._limits.local_margin_s)

    async def _command(self, name: str, body: Body, message_id: str) -> WorkerResult:
        called_at = time.monotonic()
        result = await self._ask(name, body, message_id)
        return confirmed_result(result, called_at, self._limits.local_margin_s)

    async def _ask(self, name: str, body: Body, message_id: str) -> Any:
        failure = self.error
        if failure is None:
            # Raised when the conversation's frames are gone: they hold what was sent.
            try:
                return await self._conversation.request(name, body, message_id)
            except OrbitError as error:
                # The end of the whole session is no answer to this request.
                failure = lost(error) if error is self._conversation.over else worker_error(error)
        raise failure

    async def _greet(self) -> None:
        self._welcome = await self._conversation.hello(self._registration)

    async def _read(self) -> None:
        try:
            await self._conversation.read()
        except OrbitError as error:
            self._end(error)
            await self._conversation.close()

    def _take(self, push: Push) -> None:
        if push.type == _ASSIGN:
            self._assignments.put(push.body)
        else:
            self._cancellations.put(push.body)

    def _end(self, reason: OrbitError) -> None:
        self._conversation.end(reason)
        self._assignments.end()
        self._cancellations.end()


def _check(registration: WorkerRegistration) -> None:
    try:
        Hello.parse(registration.to_body(), "registration")
    except InvalidValue as error:
        failure = InvalidRequest(str(error))
    else:
        return
    raise failure


def _checked(report: Finish) -> Finish:
    """Give the report with its result's canonical text; raises InvalidRequest, which holds nothing of the result."""
    if report.result is None:
        return report
    try:
        return replace(report, result=result_text(report.result.encode(), "result"))
    except UnicodeEncodeError:
        failure = InvalidRequest("result: is not strict JSON: half of a surrogate pair")
    except InvalidValue as error:
        failure = InvalidRequest(str(error))
    raise failure


def _dial_failure(error: OrbitError | TimeoutError, *, opened: bool) -> OrbitError:
    if isinstance(error, OrbitError):
        return worker_error(error)
    if opened:
        return WorkerTimeout("no welcome in time")
    return TransportError("no connection in time", outcome_unknown=False)

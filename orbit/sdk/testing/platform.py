"""A platform in memory that gives work to one queue's workers, over the real session and no network.

    async with FakePlatform() as platform, platform.client() as client:
        task_id = platform.submit("text.normalize", {"text": " a "})
        running = asyncio.create_task(runner.run(client))
        await platform.until(lambda: platform.tasks[task_id].state is TaskState.SUCCEEDED)

It keeps to what a worker can see of the rules: capacity, leases, proofs, receipts, fencing, drain and retries without
waits. It has no HTTP: submit, cancel and read tasks by its methods. Leases end when its clock says so, or by `lapse`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from orbit.protocol.assignment_v1 import AssignedTask, Assignment, Cancellation
from orbit.protocol.attempt_v1 import (
    Attempt,
    AttemptState,
    CommandResult,
    Disposition,
    Finish,
    Lease,
    Operation,
    Outcome,
    Receipt,
)
from orbit.protocol.errors import ErrorCode
from orbit.protocol.http_v1 import RecoverySafety, TaskState
from orbit.protocol.limits import Limits
from orbit.protocol.values import Secret, new_id
from orbit.protocol.worker_v1 import VOCABULARY, Capability, Capacity, Hello, Welcome
from orbit.sdk.channel import Channel
from orbit.sdk.client import OrbitClient
from orbit.sdk.errors import TransportError
from orbit.sdk.testing.peer import Peer, PeerConnection
from orbit.sdk.testing.pipe import Pipe
from orbit.sdk.testing.tasks import FakeAttempt, FakeTask

EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""The platform's clock when it is made; a worker must use differences only."""

DAY: Final = timedelta(days=1)


@dataclass
class FakeInstance:
    """One worker process."""

    revision: int = 0
    drained: bool = False


class FakePlatform(Peer):
    """One queue. `async with` ends its connections."""

    def __init__(self, *, limits: Limits | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(VOCABULARY, limits)
        self._clock = clock
        self._began = clock()
        self._serving: set[asyncio.Task[None]] = set()
        self.tasks: dict[str, FakeTask] = {}
        self.instances: dict[str, FakeInstance] = {}
        self.down = False
        """Whether dials fail, as if nobody listened."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()
        if self._serving:
            await asyncio.wait(self._serving)
            for task in self._serving:
                task.result()  # a client that broke the protocol is an error of the test

    @property
    def now(self) -> datetime:
        """The platform's clock."""
        return EPOCH + timedelta(seconds=self._clock() - self._began)

    def client(self) -> OrbitClient:
        """A client whose connections end here; its HTTP calls reach nobody."""
        return _PipedClient(self)

    def open_channel(self) -> Channel:
        """Connect a client; raises TransportError while the platform is down."""
        if self.down:
            raise TransportError("cannot connect", outcome_unknown=False)
        pipe = Pipe()
        connection = FakeConnection(self, pipe, len(self.connections) + 1)
        self.connections.append(connection)
        task = asyncio.create_task(connection.serve(pipe.messages()), name="fake-orbit-connection")
        self._serving.add(task)
        return pipe.channel()

    def cut(self) -> None:
        """Cut every connection."""
        for connection in self.connections:
            connection.cut()

    def submit(
        self,
        handler: str,
        payload: Any = None,
        *,
        version: str = "v1",
        payload_version: str = "v1",
        max_attempts: int = 1,
        attempt_timeout_ms: int = 300_000,
        recovery_safety: RecoverySafety = RecoverySafety.RECONCILE_ONLY,
    ) -> str:
        """Add a task; its id."""
        task = FakeTask(
            task_id=new_id(),
            capability=Capability(handler=handler, handler_version=version, payload_version=payload_version),
            payload=msgspec.Raw(msgspec.json.encode(payload)),
            max_attempts=max_attempts,
            attempt_timeout_ms=attempt_timeout_ms,
            recovery_safety=recovery_safety,
        )
        self.tasks[task.task_id] = task
        self.look()
        return task.task_id

    def cancel(self, task_id: str) -> None:
        """Ask for a task's cancellation; the worker that has it is told."""
        task = self.tasks[task_id]
        task.cancel_requested_at = task.cancel_requested_at or self.now
        if task.state in (TaskState.WAITING, TaskState.LEASED):
            for held in task.attempts[-1:]:
                held.state = AttemptState.ENDED
            task.move(TaskState.CANCELLED)
        self.look()

    def lapse(self, task_id: str) -> None:
        """End the lease of the task's newest attempt."""
        self.tasks[task_id].lapse()
        self.look()

    def look(self) -> None:
        """End leases that are over, push what can be pushed."""
        for task in self.tasks.values():
            if task.newest is not None and task.active(task.newest) and task.newest.lease_until <= self.now:
                task.lapse()
        for connection in self.connections:
            connection.dispatch()
        self.changes.notify()

    def greet(self, hello: Hello) -> FakeInstance:
        """Begin a session of a worker, which fences its earlier one."""
        instance = self.instances.setdefault(hello.instance_id, FakeInstance())
        instance.revision += 1
        return instance

    def held_by(self, instance_id: str) -> int:
        """How many attempts of an instance have not ended."""
        return sum(
            held.instance_id == instance_id and held.state is not AttemptState.ENDED
            for task in self.tasks.values()
            for held in task.attempts
        )


class FakeConnection(PeerConnection):
    """One worker's connection."""

    def __init__(self, platform: FakePlatform, wire: Pipe, number: int) -> None:
        super().__init__(platform, wire, number)
        self.platform = platform
        self.hello: Hello | None = None
        self.instance: FakeInstance | None = None
        self.revision = 0
        self.capacity = 0
        self._told: set[str] = set()

    def dispatch(self) -> None:
        """Claim and push while there is room, and push cancellations."""
        if self.hello is None or not self.open or self.session.phase != "OPEN":
            return
        if self.revision != self._instance.revision or self._instance.drained:
            return
        for task in self.platform.tasks.values():
            self._tell(task)
            room = self.capacity - self.platform.held_by(self.hello.instance_id)
            if task.state is TaskState.WAITING and room > 0 and task.capability in self.hello.capabilities:
                self.send(self.session.push("task.assign", self._claim(task), new_id()))

    def carry_out(self, kind: str, message_id: str, body: Any) -> bytes:
        if kind == "worker.hello":
            self.hello, self.instance = body, self.platform.greet(body)
            self.revision = self.instance.revision
            return self.session.welcome(new_id(), message_id, self._welcome(None))
        if self.revision != self._instance.revision:
            return self.session.refuse(message_id, ErrorCode.SESSION_FENCED, "a newer session has begun")
        if kind == "worker.capacity":
            return self._announced(message_id, body)
        self.platform.look()
        return self._asked(kind, message_id, body.attempt if kind == "task.finish" else body, body)

    def _announced(self, message_id: str, capacity: Capacity) -> bytes:
        if self._instance.drained and not capacity.drain:
            return self.session.refuse(message_id, ErrorCode.STATE_CONFLICT, "the instance drains")
        self.capacity, self._instance.drained = capacity.capacity, capacity.drain
        return self.session.reply(message_id, self._welcome(capacity.sequence))

    def _asked(self, kind: str, message_id: str, attempt: Attempt, body: Any) -> bytes:
        task = self.platform.tasks.get(attempt.task_id)
        held = None if task is None else task.held(attempt)
        if task is None or held is None:
            return self.session.refuse(message_id, ErrorCode.INVALID_PROOF, "another epoch or secret")
        if kind == "worker.resume":
            return self.session.reply(message_id, self._lease(task, held))
        if message_id not in held.receipts:
            if kind == "task.finish":
                refusal = self._finish(task, held, message_id, body)
            else:
                refusal = self._prolong(kind, task, held, message_id)
            if refusal is not None:
                return self.session.refuse(message_id, refusal, "it has no lease any more, or no permission")
        receipt = held.receipts[message_id]
        answer = CommandResult(disposition=receipt.disposition, receipt=receipt, lease=self._lease(task, held))
        return self.session.reply(message_id, answer)

    def _finish(self, task: FakeTask, held: FakeAttempt, message_id: str, report: Finish) -> ErrorCode | None:
        applies = task.active(held) and held.state is AttemptState.RUNNING
        if applies and report.outcome is Outcome.CANCELLED and task.cancel_requested_at is None:
            return ErrorCode.STATE_CONFLICT
        held.reports.append(report)
        if applies:
            held.state, held.outcome = AttemptState.ENDED, report.outcome.value
            task.end(report)
        disposition = Disposition.APPLIED if applies else Disposition.EVIDENCE_ONLY
        held.receipts[message_id] = self._receipt(task, held, Operation.FINISH, disposition)
        return None

    def _prolong(self, kind: str, task: FakeTask, held: FakeAttempt, message_id: str) -> ErrorCode | None:
        if not task.active(held):
            return ErrorCode.STATE_CONFLICT if held is task.newest else ErrorCode.STALE_EPOCH
        now = self.platform.now
        if kind == "task.start":
            if held.state is AttemptState.RUNNING or task.cancel_requested_at is not None:
                return ErrorCode.STATE_CONFLICT
            held.state, held.started_at = AttemptState.RUNNING, now
            task.move(TaskState.RUNNING)
        until = now + timedelta(seconds=self.platform.limits.task_lease_s)
        held.lease_until = until if held.started_at is None else min(until, held.started_at + task.timeout)
        operation = Operation.START if kind == "task.start" else Operation.RENEW
        held.receipts[message_id] = self._receipt(task, held, operation, Disposition.APPLIED)
        return None

    @property
    def _instance(self) -> FakeInstance:
        assert self.instance is not None, "the session lets nothing pass before the hello"
        return self.instance

    def _claim(self, task: FakeTask) -> Assignment:
        assert self.hello is not None
        attempt = Attempt(
            task_id=task.task_id, attempt_id=new_id(), epoch=len(task.attempts) + 1, lease_secret=Secret.new()
        )
        until = self.platform.now + timedelta(seconds=self.platform.limits.task_lease_s)
        held = FakeAttempt(attempt, self.hello.instance_id, until)
        task.attempts.append(held)
        task.move(TaskState.LEASED)
        assigned = AssignedTask(
            task_id=task.task_id,
            queue_id=self.platform.queue_id,
            handler=task.capability.handler,
            handler_version=task.capability.handler_version,
            payload_version=task.capability.payload_version,
            payload=task.payload,
            attempt_number=len(task.attempts),
            max_attempts=task.max_attempts,
            attempt_timeout_ms=task.attempt_timeout_ms,
            deadline_at=self.platform.now + DAY,
            effect_uncertain=task.effect_uncertain,
        )
        return Assignment(task=assigned, attempt=attempt, lease=self._lease(task, held))

    def _tell(self, task: FakeTask) -> None:
        held = task.newest
        if task.cancel_requested_at is None or held is None or held.state is AttemptState.ENDED:
            return
        if held.attempt.attempt_id not in self._told:
            self._told.add(held.attempt.attempt_id)
            task_id, attempt_id, epoch = held.attempt.identity
            wish = Cancellation(
                task_id=task_id, attempt_id=attempt_id, epoch=epoch, cancel_requested_at=task.cancel_requested_at
            )
            self.send(self.session.push("task.cancel", wish, new_id()))

    def _lease(self, task: FakeTask, held: FakeAttempt) -> Lease:
        active = held.state is not AttemptState.ENDED
        task_id, attempt_id, epoch = held.attempt.identity
        return Lease(
            task_id=task_id,
            attempt_id=attempt_id,
            epoch=epoch,
            state=held.state,
            active=active,
            server_time=self.platform.now,
            lease_until=held.lease_until if active else None,
            cancel_requested_at=task.cancel_requested_at if active else None,
        )

    def _receipt(self, task: FakeTask, held: FakeAttempt, operation: Operation, disposition: Disposition) -> Receipt:
        task_id, attempt_id, epoch = held.attempt.identity
        return Receipt(
            operation=operation,
            task_id=task_id,
            attempt_id=attempt_id,
            epoch=epoch,
            disposition=disposition,
            task_state=task.state,
            task_version=task.version,
            recorded_at=self.platform.now,
            lease_until=None if operation is Operation.FINISH else held.lease_until,
        )

    def _welcome(self, sequence: int | None) -> Welcome:
        assert self.hello is not None
        welcome = Welcome(
            instance_id=self.hello.instance_id,
            queue_id=self.platform.queue_id,
            revision=self.revision,
            session_until=self.platform.now + timedelta(seconds=self.platform.limits.session_s),
            server_time=self.platform.now,
            capacity=self.capacity,
            drain=self._instance.drained,
        )
        return replace(welcome, sequence=sequence)


class _PipedClient(OrbitClient):
    """A client whose connections are the platform's pipes."""

    def __init__(self, platform: FakePlatform) -> None:
        super().__init__("http://127.0.0.1:9", platform.credentials, limits=platform.limits)
        self._platform = platform

    async def open_channel(self, path: str, subprotocol: str) -> Channel:
        if (path, subprotocol) != (VOCABULARY.path, VOCABULARY.subprotocol):
            raise TransportError("only workers connect here", outcome_unknown=False)
        return self._platform.open_channel()

"""A platform that gives work, in the test's own process: the WebSocket of `pulse.worker.v1`, attempts in memory.

It grants whatever it is asked, once for each message id, unless a test says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import msgspec
from websockets.asyncio.server import ServerConnection

from orbit.protocol import worker_v1
from orbit.protocol.assignment_v1 import AssignedTask, Assignment, Cancellation
from orbit.protocol.attempt_v1 import Attempt, AttemptState, CommandResult, Lease, Operation
from orbit.protocol.limits import Limits
from orbit.protocol.values import Secret, new_id
from orbit.protocol.vocabulary import Body
from orbit.sdk import Capability, WorkerRegistration, new_worker_registration
from tests.support import worker_conversations as words
from tests.support.fake_peer import FakeConnection, FakePeer

CAPABILITY = Capability(handler="text.normalize", handler_version="v1", payload_version="v1")
_STATE = {
    "task.start": AttemptState.RUNNING,
    "task.renew": AttemptState.RUNNING,
    "task.finish": AttemptState.ENDED,
}
_OPERATION = {"task.start": Operation.START, "task.renew": Operation.RENEW}


@dataclass
class Held:
    """One attempt as the fake platform has it."""

    attempt: Attempt
    state: AttemptState = AttemptState.LEASED


class FakeWorkers(FakePeer):
    """One queue with work; `async with` listens on a loopback port."""

    def __init__(self, *, limits: Limits | None = None) -> None:
        super().__init__(worker_v1.VOCABULARY, limits)
        self.attempts: dict[str, Held] = {}
        self.receipts: dict[tuple[str, str], CommandResult] = {}
        self.effects: list[tuple[str, str]] = []
        """What changed something, by type and attempt: at most once for each message id."""
        self.change_lease: Callable[[Lease], Lease] = lambda lease: lease
        self.drain = False
        self.revision = 0

    @property
    def connection(self) -> WorkerSession:
        """The newest connection."""
        newest: WorkerSession = self.connections[-1]
        return newest

    def connect(self, socket: ServerConnection, number: int) -> WorkerSession:
        return WorkerSession(self, socket, number)

    def registration(self, **options: Any) -> WorkerRegistration:
        """A worker of this queue."""
        return new_worker_registration(self.queue_id, 4, [CAPABILITY], **options)

    def assignment(self, payload: bytes = b'{"text":"  a  "}') -> Assignment:
        """A task of this queue that is reserved."""
        attempt = Attempt(task_id=new_id(), attempt_id=new_id(), epoch=1, lease_secret=Secret.new())
        self.attempts[attempt.attempt_id] = Held(attempt)
        task: AssignedTask = words.task(queue_id=self.queue_id, task_id=attempt.task_id, payload=msgspec.Raw(payload))
        return Assignment(task=task, attempt=attempt, lease=words.lease(attempt, AttemptState.LEASED))

    def assign(self, assignment: Assignment | None = None) -> Assignment:
        """Push a task over the newest connection."""
        work = assignment or self.assignment()
        self.connection.send(self.connection.session.push("task.assign", work, new_id()))
        return work

    def cancel(self, attempt: Attempt) -> Cancellation:
        """Push a wish that the attempt's task end."""
        wish = Cancellation(
            task_id=attempt.task_id,
            attempt_id=attempt.attempt_id,
            epoch=attempt.epoch,
            cancel_requested_at=words.NOW,
        )
        self.connection.send(self.connection.session.push("task.cancel", wish, new_id()))
        return wish


class WorkerSession(FakeConnection):
    """One worker's connection."""

    def __init__(self, workers: FakeWorkers, socket: ServerConnection, number: int) -> None:
        super().__init__(workers, socket, number)
        self.workers = workers
        self.hello: worker_v1.Hello | None = None

    def dispatch(self) -> None:
        """Tests push themselves."""

    def carry_out(self, kind: str, message_id: str, body: Any) -> bytes:
        if kind == "worker.hello":
            self.hello = body
            self.workers.revision += 1
            return self.session.welcome(new_id(), message_id, self._welcome(None))
        return self.session.reply(message_id, self._answer(kind, message_id, body))

    def _answer(self, kind: str, message_id: str, body: Any) -> Body:
        if kind == "worker.capacity":
            self.workers.drain = body.drain
            return replace(self._welcome(body.sequence), capacity=body.capacity, drain=body.drain)
        if kind == "worker.resume":
            held = self.workers.attempts[body.attempt_id]
            return self.workers.change_lease(words.lease(body, held.state))
        attempt: Attempt = body.attempt if kind == "task.finish" else body
        return self._command(kind, message_id, attempt)

    def _command(self, kind: str, message_id: str, attempt: Attempt) -> CommandResult:
        held = self.workers.attempts[attempt.attempt_id]
        assert held.attempt == attempt, "the proof is another attempt's"
        key = (attempt.attempt_id, message_id)
        if key not in self.workers.receipts:
            held.state = _STATE[kind]
            self.workers.effects.append((kind, attempt.attempt_id))
            made = words.finished(attempt) if kind == "task.finish" else words.granted(attempt, _OPERATION[kind])
            self.workers.receipts[key] = made
        now = self.workers.change_lease(words.lease(attempt, held.state))
        return replace(self.workers.receipts[key], lease=now)

    def _welcome(self, sequence: int | None) -> worker_v1.Welcome:
        assert self.hello is not None
        return worker_v1.Welcome(
            instance_id=self.hello.instance_id,
            queue_id=self.hello.queue_id,
            revision=self.workers.revision,
            session_until=words.NOW + timedelta(seconds=45),
            server_time=words.NOW,
            capacity=0,
            drain=self.workers.drain,
            sequence=sequence,
        )

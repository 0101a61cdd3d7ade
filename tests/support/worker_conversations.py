"""Both ends of a `pulse.worker.v1` conversation in one process, and the bodies to fill it with."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from orbit.protocol import worker_v1
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
from orbit.protocol.http_v1 import TaskState
from orbit.protocol.limits import Limits
from orbit.protocol.session import ClientSession, Hello, Reply, Requested, ServerSession, Welcomed
from orbit.protocol.values import Secret
from orbit.protocol.vocabulary import Body

NOW = datetime(2026, 11, 30, 8, 15, 30, 250_000, tzinfo=UTC)
INSTANCE = "1" * 32
QUEUE = "a" * 32
SESSION = "e" * 32
INSTANCE_SECRET = "ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8"
LEASE_SECRET = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
NORMALIZE = worker_v1.Capability(handler="text.normalize", handler_version="v1", payload_version="v1")


def ident(number: int) -> str:
    """The identifier that ends in `number`."""
    return f"{number:032x}"


def hello(**changes: Any) -> worker_v1.Hello:
    values: dict[str, Any] = {
        "instance_id": INSTANCE,
        "instance_secret": Secret(INSTANCE_SECRET),
        "queue_id": QUEUE,
        "capacity": 4,
        "capabilities": (NORMALIZE,),
        "cancellation_notifications": True,
        "concurrency_keys": True,
    }
    return worker_v1.Hello(**values | changes)


def welcome(sequence: int | None = None, room: int = 0, *, drain: bool = False) -> worker_v1.Welcome:
    return worker_v1.Welcome(
        instance_id=INSTANCE,
        queue_id=QUEUE,
        revision=1,
        session_until=NOW + timedelta(seconds=45),
        server_time=NOW,
        capacity=room,
        drain=drain,
        sequence=sequence,
    )


def capacity(sequence: int, room: int = 4, *, drain: bool = False) -> worker_v1.Capacity:
    return worker_v1.Capacity(sequence=sequence, capacity=room, drain=drain)


def attempt(number: int = 1, epoch: int = 1) -> Attempt:
    return Attempt(
        task_id=ident(0x700 + number), attempt_id=ident(0xA00 + number), epoch=epoch, lease_secret=Secret(LEASE_SECRET)
    )


def lease(of: Attempt, state: AttemptState = AttemptState.RUNNING, **changes: Any) -> Lease:
    """What holds now: for an attempt that has ended, nothing."""
    active = state is not AttemptState.ENDED
    values: dict[str, Any] = {
        "task_id": of.task_id,
        "attempt_id": of.attempt_id,
        "epoch": of.epoch,
        "state": state,
        "active": active,
        "server_time": NOW,
        "lease_until": NOW + timedelta(seconds=30) if active else None,
    }
    return Lease(**values | changes)


def receipt(of: Attempt, operation: Operation, **changes: Any) -> Receipt:
    """What was recorded when the message first arrived: it took effect."""
    values: dict[str, Any] = {
        "operation": operation,
        "task_id": of.task_id,
        "attempt_id": of.attempt_id,
        "epoch": of.epoch,
        "disposition": Disposition.APPLIED,
        "task_state": TaskState.SUCCEEDED if operation is Operation.FINISH else TaskState.RUNNING,
        "task_version": 4,
        "recorded_at": NOW,
        "lease_until": None if operation is Operation.FINISH else NOW + timedelta(seconds=30),
    }
    return Receipt(**values | changes)


def granted(of: Attempt, operation: Operation) -> CommandResult:
    """The answer to a start or a renewal."""
    return CommandResult(disposition=Disposition.APPLIED, receipt=receipt(of, operation), lease=lease(of))


def finished(of: Attempt, disposition: Disposition = Disposition.APPLIED) -> CommandResult:
    """The answer to a report."""
    return CommandResult(
        disposition=disposition,
        receipt=receipt(of, Operation.FINISH, disposition=disposition),
        lease=lease(of, AttemptState.ENDED),
    )


def success(of: Attempt, result: str = '{"text":"HELLO ORBIT"}') -> Finish:
    return Finish(attempt=of, outcome=Outcome.SUCCEEDED, result=result)


def task(number: int = 1, **changes: Any) -> AssignedTask:
    values: dict[str, Any] = {
        "task_id": ident(0x700 + number),
        "queue_id": QUEUE,
        "handler": NORMALIZE.handler,
        "handler_version": NORMALIZE.handler_version,
        "payload_version": NORMALIZE.payload_version,
        "payload": msgspec.Raw(b'{"text":"  Hello Orbit  "}'),
        "attempt_number": 1,
        "max_attempts": 1,
        "attempt_timeout_ms": 300_000,
        "deadline_at": NOW + timedelta(hours=1),
    }
    return AssignedTask(**values | changes)


def assignment(number: int = 1, **changes: Any) -> Assignment:
    """A task, with `changes` to it, that is reserved."""
    of = attempt(number)
    return Assignment(task=task(number, **changes), attempt=of, lease=lease(of, AttemptState.LEASED))


def cancellation(number: int = 1) -> Cancellation:
    of = attempt(number)
    return Cancellation(task_id=of.task_id, attempt_id=of.attempt_id, epoch=of.epoch, cancel_requested_at=NOW)


def answer_to(request: Requested) -> Body:
    """The reply of a server that grants everything."""
    match request.type:
        case "worker.capacity":
            return welcome(request.body.sequence, request.body.capacity, drain=request.body.drain)
        case "worker.resume":
            return lease(request.body)
        case "task.finish":
            return finished(request.body.attempt)
        case "task.start":
            return granted(request.body, Operation.START)
        case _:
            return granted(request.body, Operation.RENEW)


class WorkerPair:
    """A worker's and a server's session, brought to the phase a test starts from."""

    def __init__(self, limits: Limits | None = None, **changes: Any) -> None:
        self.client = ClientSession(worker_v1.VOCABULARY, limits)
        self.server = ServerSession(worker_v1.VOCABULARY, limits)
        self._hello = hello(**changes)

    def greeted(self) -> WorkerPair:
        """Exchange hello and welcome."""
        greeting = self.server.receive(self.client.hello(self._hello, ident(0xC0)))
        assert isinstance(greeting, Hello)
        answer = self.client.receive(self.server.welcome(SESSION, greeting.message_id, welcome()))
        assert answer == Welcomed(welcome())
        return self

    def opened(self) -> WorkerPair:
        """Exchange hello, welcome and the first capacity."""
        self.greeted()
        assert self.exchange("worker.capacity", capacity(1), ident(0xC1)) == welcome(1, 4)
        return self

    def exchange(self, name: str, body: Body, message_id: str, answer: Body | None = None) -> Any:
        """Send a request and its answer, by default that of a server that grants everything; give what arrives."""
        request = self.server.receive(self.client.request(name, body, message_id))
        assert isinstance(request, Requested)
        reply = self.client.receive(self.server.reply(message_id, answer or answer_to(request)))
        assert isinstance(reply, Reply)
        assert (reply.message_id, reply.type) == (message_id, name)
        return reply.body

"""The subprotocol `pulse.worker.v1`, by which a worker takes tasks, proves what it may do and reports.

| frame           | direction | body                          | answered by               |
| --------------- | --------- | ----------------------------- | ------------------------- |
| worker.hello    | client    | `Hello`                       | worker.welcome: `Welcome` |
| worker.capacity | client    | `Capacity`                    | ack: `Welcome`            |
| worker.resume   | client    | `Attempt`                     | ack: `Lease`              |
| task.start      | client    | `Attempt`                     | ack: `CommandResult`      |
| task.renew      | client    | `Attempt`                     | ack: `CommandResult`      |
| task.finish     | client    | `Finish`                      | ack: `CommandResult`      |
| task.assign     | server    | `Assignment`                  | nothing                   |
| task.cancel     | server    | `Cancellation`                | nothing                   |

A parser takes an untrusted body and raises `InvalidValue` with the member's path. `to_body` gives the wire's form.
Unknown members are refused where `lenient` is false; the SDK passes true for what a newer server sends.
Sources: seeds worker-contract and worker-sdk.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Self

from orbit.protocol.assignment_v1 import AssignedTask, Assignment, Cancellation
from orbit.protocol.attempt_v1 import Attempt, CommandResult, Finish, Lease, Operation
from orbit.protocol.errors import InvalidValue
from orbit.protocol.members import read_flag, read_list, read_object
from orbit.protocol.strict_json import as_int
from orbit.protocol.values import Secret, format_time, parse_counter, parse_id, parse_name, parse_time
from orbit.protocol.vocabulary import Pushed, Request, Vocabulary

SUBPROTOCOL: Final = "pulse.worker.v1"
PATH: Final = "/v1/workers"
CAPACITY_MAX: Final = 1_000
CAPABILITIES_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Capability:
    """A handler that a worker has."""

    handler: str
    handler_version: str
    payload_version: str

    @classmethod
    def of(cls, task: AssignedTask) -> Self:
        """What a worker needs for `task`."""
        return cls(handler=task.handler, handler_version=task.handler_version, payload_version=task.payload_version)

    @classmethod
    def parse(cls, body: object, path: str = "body", *, lenient: bool = False) -> Self:
        """Read an untrusted body; raises InvalidValue."""
        names = frozenset({"handler", "handler_version", "payload_version"})
        members = read_object(body, path, names, lenient=lenient)
        return cls(
            handler=parse_name(members["handler"], f"{path}.handler", max_length=128),
            handler_version=parse_name(members["handler_version"], f"{path}.handler_version"),
            payload_version=parse_name(members["payload_version"], f"{path}.payload_version"),
        )

    def to_body(self) -> dict[str, Any]:
        """The body as it goes on the wire."""
        return {
            "handler": self.handler,
            "handler_version": self.handler_version,
            "payload_version": self.payload_version,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Who works. One instance is one process: the same values on every reconnect, new ones after a restart.

    A later hello of the same instance fences its earlier session. `capacity` is the most that any later
    worker.capacity may ask for.
    """

    instance_id: str
    instance_secret: Secret = field(repr=False)
    queue_id: str
    capacity: int
    capabilities: tuple[Capability, ...]
    cancellation_notifications: bool = False
    concurrency_keys: bool = False

    @classmethod
    def parse(cls, body: object, path: str = "body", *, lenient: bool = False) -> Self:
        """Read an untrusted body; raises InvalidValue."""
        members = read_object(
            body,
            path,
            frozenset({"instance_id", "instance_secret", "queue_id", "capacity", "capabilities"}),
            frozenset({"cancellation_notifications", "concurrency_keys"}),
            lenient=lenient,
        )
        where = f"{path}.capabilities"
        capabilities = read_list(members["capabilities"], where, Capability.parse, most=CAPABILITIES_MAX)
        if len(set(capabilities)) != len(capabilities):
            raise InvalidValue(where, "must not hold the same capability twice")
        notifications = members.get("cancellation_notifications", False)
        return cls(
            instance_id=parse_id(members["instance_id"], f"{path}.instance_id"),
            instance_secret=Secret.parse(members["instance_secret"], f"{path}.instance_secret"),
            queue_id=parse_id(members["queue_id"], f"{path}.queue_id"),
            capacity=as_int(members["capacity"], f"{path}.capacity", 1, CAPACITY_MAX),
            capabilities=capabilities,
            cancellation_notifications=read_flag(notifications, f"{path}.cancellation_notifications"),
            concurrency_keys=read_flag(members.get("concurrency_keys", False), f"{path}.concurrency_keys"),
        )

    def to_body(self) -> dict[str, Any]:
        """The body as it goes on the wire, with the secret."""
        body: dict[str, Any] = {
            "instance_id": self.instance_id,
            "instance_secret": self.instance_secret.reveal(),
            "queue_id": self.queue_id,
            "capacity": self.capacity,
            "capabilities": [one.to_body() for one in self.capabilities],
        }
        if self.cancellation_notifications:
            body["cancellation_notifications"] = True
        if self.concurrency_keys:
            body["concurrency_keys"] = True
        return body


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The session as the server has it: answer to hello and to every capacity.

    `revision` counts the instance's sessions; a newer one fences the older. `sequence` is absent before the first
    capacity of the session. `drain` survives reconnecting.
    """

    instance_id: str
    queue_id: str
    revision: int
    session_until: datetime
    server_time: datetime
    capacity: int
    drain: bool
    sequence: int | None = None

    @classmethod
    def parse(cls, body: object, path: str = "body", *, lenient: bool = False) -> Self:
        """Read an untrusted body; raises InvalidValue."""
        required = frozenset(
            {"instance_id", "queue_id", "revision", "session_until", "server_time", "capacity", "drain"}
        )
        members = read_object(body, path, required, frozenset({"sequence"}), lenient=lenient)
        sequence = members.get("sequence")
        return cls(
            instance_id=parse_id(members["instance_id"], f"{path}.instance_id"),
            queue_id=parse_id(members["queue_id"], f"{path}.queue_id"),
            revision=parse_counter(members["revision"], f"{path}.revision"),
            session_until=parse_time(members["session_until"], f"{path}.session_until"),
            server_time=parse_time(members["server_time"], f"{path}.server_time"),
            capacity=as_int(members["capacity"], f"{path}.capacity", 0, CAPACITY_MAX),
            drain=read_flag(members["drain"], f"{path}.drain"),
            sequence=parse_counter(sequence, f"{path}.sequence") if "sequence" in members else None,
        )

    def to_body(self) -> dict[str, Any]:
        """The body as it goes on the wire."""
        body: dict[str, Any] = {
            "instance_id": self.instance_id,
            "queue_id": self.queue_id,
            "revision": str(self.revision),
            "session_until": format_time(self.session_until),
            "server_time": format_time(self.server_time),
            "capacity": self.capacity,
            "drain": self.drain,
        }
        if self.sequence is not None:
            body["sequence"] = str(self.sequence)
        return body


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """How many tasks the worker holds at most, in all: an absolute value. It renews the session, never a lease.

    Zero stops new claims and releases nothing. `drain` says that no claims will ever follow; it is never undone. All
    three members are required: absence must not be read as a zero that somebody chose.
    """

    sequence: int
    capacity: int
    drain: bool

    @classmethod
    def parse(cls, body: object, path: str = "body", *, lenient: bool = False) -> Self:
        """Read an untrusted body; raises InvalidValue."""
        members = read_object(body, path, frozenset({"sequence", "capacity", "drain"}), lenient=lenient)
        return cls(
            sequence=parse_counter(members["sequence"], f"{path}.sequence"),
            capacity=as_int(members["capacity"], f"{path}.capacity", 0, CAPACITY_MAX),
            drain=read_flag(members["drain"], f"{path}.drain"),
        )

    def to_body(self) -> dict[str, Any]:
        """The body as it goes on the wire."""
        return {"sequence": str(self.sequence), "capacity": self.capacity, "drain": self.drain}


def _check_welcome(hello: Hello, welcome: Welcome) -> None:
    if (welcome.instance_id, welcome.queue_id) != (hello.instance_id, hello.queue_id):
        raise InvalidValue("body.instance_id", "must be the one of the hello, and so must queue_id")
    if welcome.sequence is not None:
        raise InvalidValue("body.sequence", "must be absent before the first capacity")


def _check_capacity(capacity: Capacity, welcome: Welcome) -> None:
    if (welcome.sequence, welcome.capacity, welcome.drain) != (capacity.sequence, capacity.capacity, capacity.drain):
        raise InvalidValue("body.sequence", "must be the one of the request, and so must capacity and drain")


def _check_lease(attempt: Attempt, lease: Lease) -> None:
    if lease.identity != attempt.identity:
        raise InvalidValue("body.attempt_id", "must be the one of the request, and so must task_id and epoch")


def _check_result(operation: Operation, attempt: Attempt, result: CommandResult) -> None:
    # A result is about one attempt; parsing has seen to that.
    if (result.receipt.operation, result.receipt.identity) != (operation, attempt.identity):
        raise InvalidValue("body.receipt", "must be for the request's operation and attempt")


def _check_start(attempt: Attempt, result: CommandResult) -> None:
    _check_result(Operation.START, attempt, result)


def _check_renewal(attempt: Attempt, result: CommandResult) -> None:
    _check_result(Operation.RENEW, attempt, result)


def _check_finish(finish: Finish, result: CommandResult) -> None:
    _check_result(Operation.FINISH, finish.attempt, result)


def _check_assignment(hello: Hello, assignment: Assignment) -> None:
    task = assignment.task
    if task.queue_id != hello.queue_id:
        raise InvalidValue("body.task.queue_id", "must be the one of the hello")
    if Capability.of(task) not in hello.capabilities:
        raise InvalidValue("body.task.handler", "must be one that the hello declared, in those versions")
    if task.concurrency_key is not None and not hello.concurrency_keys:
        raise InvalidValue("body.task.concurrency_key", "goes to workers that declared concurrency_keys")


def _check_cancellation(hello: Hello, _: Cancellation) -> None:
    if not hello.cancellation_notifications:
        raise InvalidValue("type", "goes to workers that asked for cancellation_notifications")


VOCABULARY: Final = Vocabulary(
    subprotocol=SUBPROTOCOL,
    path=PATH,
    hello="worker.hello",
    welcome="worker.welcome",
    greeting=Request(Hello, Welcome, _check_welcome),
    capacity="worker.capacity",
    requests={
        "worker.capacity": Request(Capacity, Welcome, _check_capacity),
        "worker.resume": Request(Attempt, Lease, _check_lease),
        "task.start": Request(Attempt, CommandResult, _check_start),
        "task.renew": Request(Attempt, CommandResult, _check_renewal),
        "task.finish": Request(Finish, CommandResult, _check_finish),
    },
    pushes={
        "task.assign": Pushed(Assignment, _check_assignment),
        "task.cancel": Pushed(Cancellation, _check_cancellation),
    },
)
"""The subprotocol as data, for `ClientSession` and `ServerSession`."""

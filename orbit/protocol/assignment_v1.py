"""What `pulse.worker.v1` pushes: the work, and the wish that it end. Sources: seeds worker-contract and worker-sdk."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Self

from orbit.protocol.attempt_v1 import Attempt, AttemptState, Lease, OfAttempt
from orbit.protocol.errors import InvalidValue
from orbit.protocol.members import read_flag, read_object
from orbit.protocol.strict_json import as_int
from orbit.protocol.values import COUNT_MAX, format_time, parse_counter, parse_id, parse_key, parse_name, parse_time

_TASK_REQUIRED: Final = frozenset(
    {
        "task_id",
        "queue_id",
        "handler",
        "handler_version",
        "payload_version",
        "payload",
        "attempt_number",
        "max_attempts",
        "attempt_timeout_ms",
        "deadline_at",
    }
)
_TASK_OPTIONAL: Final = frozenset({"priority", "effect_uncertain", "concurrency_key", "concurrency_token", "retry_of"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedTask:
    """The work: what to call with what. `payload` is a JSON value, or its exact text as `msgspec.Raw`; not in repr."""

    task_id: str
    queue_id: str
    handler: str
    handler_version: str
    payload_version: str
    payload: Any = field(repr=False)
    attempt_number: int
    max_attempts: int
    attempt_timeout_ms: int
    deadline_at: datetime
    priority: int = 0
    effect_uncertain: bool = False
    concurrency_key: str | None = None
    concurrency_token: int | None = None
    retry_of: str | None = None

    @classmethod
    def parse(cls, body: object, path: str = "body", *, lenient: bool = False) -> Self:
        """Read an untrusted body; raises InvalidValue."""
        members = read_object(body, path, _TASK_REQUIRED, _TASK_OPTIONAL, lenient=lenient)
        keyed = "concurrency_key" in members
        if keyed != ("concurrency_token" in members):
            raise InvalidValue(f"{path}.concurrency_token", "goes with concurrency_key, and neither without the other")
        key, token, origin = (members.get(name) for name in ("concurrency_key", "concurrency_token", "retry_of"))
        task = cls(
            task_id=parse_id(members["task_id"], f"{path}.task_id"),
            queue_id=parse_id(members["queue_id"], f"{path}.queue_id"),
            handler=parse_name(members["handler"], f"{path}.handler", max_length=128),
            handler_version=parse_name(members["handler_version"], f"{path}.handler_version"),
            payload_version=parse_name(members["payload_version"], f"{path}.payload_version"),
            payload=members["payload"],
            attempt_number=as_int(members["attempt_number"], f"{path}.attempt_number", 1, COUNT_MAX),
            max_attempts=as_int(members["max_attempts"], f"{path}.max_attempts", 1, COUNT_MAX),
            attempt_timeout_ms=as_int(members["attempt_timeout_ms"], f"{path}.attempt_timeout_ms", 1, COUNT_MAX),
            deadline_at=parse_time(members["deadline_at"], f"{path}.deadline_at"),
            priority=as_int(members["priority"], f"{path}.priority", 0, 9) if "priority" in members else 0,
            effect_uncertain=read_flag(members.get("effect_uncertain", False), f"{path}.effect_uncertain"),
            concurrency_key=parse_key(key, f"{path}.concurrency_key") if keyed else None,
            concurrency_token=parse_counter(token, f"{path}.concurrency_token") if keyed else None,
            retry_of=parse_id(origin, f"{path}.retry_of") if "retry_of" in members else None,
        )
        if task.retry_of == task.task_id:
            raise InvalidValue(f"{path}.retry_of", "must be another task")
        return task

    def to_body(self) -> dict[str, Any]:
        """The body as it goes on the wire; members that say nothing are left out."""
        body: dict[str, Any] = {
            "task_id": self.task_id,
            "queue_id": self.queue_id,
            "handler": self.handler,
            "handler_version": self.handler_version,
            "payload_version": self.payload_version,
            "payload": self.payload,
            "attempt_number": self.attempt_number,
            "max_attempts": self.max_attempts,
            "attempt_timeout_ms": self.attempt_timeout_ms,
            "deadline_at": format_time(self.deadline_at),
        }
        if self.priority:
            body["priority"] = self.priority
        if self.effect_uncertain:
            body["effect_uncertain"] = True
        if self.concurrency_key is not None:
            body["concurrency_key"] = self.concurrency_key
            body["concurrency_token"] = str(self.concurrency_token)
        if self.retry_of is not None:
            body["retry_of"] = self.retry_of
        return body


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The push task.assign: a reservation. Only a confirmed start allows the handler to run."""

    task: AssignedTask
    attempt: Attempt
    lease: Lease

    @classmethod
    def parse(cls, body: object, path: str = "body", *, lenient: bool = False) -> Self:
        """Read an untrusted body; raises InvalidValue."""
        members = read_object(body, path, frozenset({"task", "attempt", "lease"}), lenient=lenient)
        assignment = cls(
            task=AssignedTask.parse(members["task"], f"{path}.task", lenient=lenient),
            attempt=Attempt.parse(members["attempt"], f"{path}.attempt", lenient=lenient),
            lease=Lease.parse(members["lease"], f"{path}.lease", lenient=lenient),
        )
        assignment._check(path)
        return assignment

    def _check(self, path: str) -> None:
        if self.attempt.task_id != self.task.task_id:
            raise InvalidValue(f"{path}.attempt.task_id", "must be the task's")
        if self.lease.identity != self.attempt.identity:
            raise InvalidValue(f"{path}.lease", "must be of the attempt")
        if self.lease.state is not AttemptState.LEASED or not self.lease.active:
            raise InvalidValue(f"{path}.lease.state", "must be LEASED, and the lease active")

    def to_body(self) -> dict[str, Any]:
        """The body as it goes on the wire, with the secret and the payload."""
        return {"task": self.task.to_body(), "attempt": self.attempt.to_body(), "lease": self.lease.to_body()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancellation(OfAttempt):
    """The push task.cancel: somebody asked for the end of exactly this attempt's task."""

    cancel_requested_at: datetime

    @classmethod
    def parse(cls, body: object, path: str = "body", *, lenient: bool = False) -> Self:
        """Read an untrusted body; raises InvalidValue."""
        members = read_object(
            body, path, frozenset({"task_id", "attempt_id", "epoch", "cancel_requested_at"}), lenient=lenient
        )
        return cls(
            task_id=parse_id(members["task_id"], f"{path}.task_id"),
            attempt_id=parse_id(members["attempt_id"], f"{path}.attempt_id"),
            epoch=parse_counter(members["epoch"], f"{path}.epoch"),
            cancel_requested_at=parse_time(members["cancel_requested_at"], f"{path}.cancel_requested_at"),
        )

    def to_body(self) -> dict[str, Any]:
        """The body as it goes on the wire."""
        return {
            "task_id": self.task_id,
            "attempt_id": self.attempt_id,
            "epoch": str(self.epoch),
            "cancel_requested_at": format_time(self.cancel_requested_at),
        }

"""What `pulse.worker.v1` says about attempts: the proof, the lease, the report, the receipt, the work itself.

An attempt is one claim of a task. Its proof (ids, epoch and secret) gives the right to speak about it; its lease says
whether that still counts. A receipt is history, what was recorded when a message first arrived; a lease is what holds
now. The two are never mixed: an old receipt revives nothing. Source: seeds worker-contract and worker-sdk.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Self, TypeVar

import msgspec

from orbit.protocol.errors import InvalidValue
from orbit.protocol.http_v1 import TaskState
from orbit.protocol.limits import Limits
from orbit.protocol.members import read_flag, read_object
from orbit.protocol.strict_json import Value, as_int, canonical
from orbit.protocol.values import (
    Secret,
    format_time,
    parse_counter,
    parse_id,
    parse_key,
    parse_name,
    parse_time,
)

E = TypeVar("E", bound=StrEnum)

INT_MAX: Final = 2**53 - 1
_PROOF: Final = frozenset({"task_id", "attempt_id", "epoch", "lease_secret"})
_NAMED: Final = frozenset({"task_id", "attempt_id", "epoch"})


class Outcome(StrEnum):
    """What a worker says became of its attempt. UNKNOWN is a fact of its own and never a kind of failure."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    UNKNOWN = "UNKNOWN"
    CANCELLED = "CANCELLED"


class AttemptState(StrEnum):
    """Where an attempt stands: claimed, allowed to run, or over."""

    LEASED = "LEASED"
    RUNNING = "RUNNING"
    ENDED = "ENDED"


class Operation(StrEnum):
    """What a receipt is for."""

    START = "start"
    RENEW = "renew"
    FINISH = "finish"


class Disposition(StrEnum):
    """Whether what was reported took effect or was only kept as evidence."""

    APPLIED = "APPLIED"
    EVIDENCE_ONLY = "EVIDENCE_ONLY"


class Decision(StrEnum):
    """Why a task goes on or not after an attempt that did not succeed (seed safe-retry section 3)."""

    RETRYABLE_FAILURE = "RETRYABLE_FAILURE"
    IDEMPOTENT_UNKNOWN = "IDEMPOTENT_UNKNOWN"
    UNSTARTED_LEASE_EXPIRED = "UNSTARTED_LEASE_EXPIRED"
    ATTEMPT_LIMIT = "ATTEMPT_LIMIT"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    RECONCILIATION_REQUIRED = "RECONCILIATION_REQUIRED"


def _word(kind: type[E], value: object, path: str) -> E:
    if not isinstance(value, str) or value not in kind.__members__.values():
        raise InvalidValue(path, "must be one of " + ", ".join(kind))
    return kind(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt and the right to speak about it: the body of worker.resume, task.start and task.renew."""

    task_id: str
    attempt_id: str
    epoch: int
    lease_secret: Secret = field(repr=False)

    @classmethod
    def parse(cls, body: object, path: str = "body", *, lenient: bool = False) -> Self:
        """Read an untrusted body; raises InvalidValue."""
        members = read_object(body, path, _PROOF, lenient=lenient)
        return cls(
            task_id=parse_id(members["task_id"], f"{path}.task_id"),
            attempt_id=parse_id(members["attempt_id"], f"{path}.attempt_id"),
            epoch=parse_counter(members["epoch"], f"{path}.epoch"),
            lease_secret=Secret.parse(members["lease_secret"], f"{path}.lease_secret"),
        )

    def to_body(self) -> dict[str, Any]:
        """The body as it goes on the wire, with the secret."""
        return {
            "task_id": self.task_id,
            "attempt_id": self.attempt_id,
            "epoch": str(self.epoch),
            "lease_secret": self.lease_secret.reveal(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """What an attempt may do now. `active`: its reports still count; a cancel request takes away only going on.

    `lease_until` and `server_time` are the database's clock, to be used only as a difference.
    """

    task_id: str
    attempt_id: str
    epoch: int
    state: AttemptState
    active: bool
    server_time: datetime
    lease_until: datetime | None = None
    cancel_requested_at: datetime | None = None

    @classmethod
    def parse(cls, body: object, path: str = "body", *, lenient: bool = False) -> Self:
        """Read an untrusted body; raises InvalidValue."""
        members = read_object(
            body,
            path,
            _NAMED | {"state", "active", "server_time"},
            frozenset({"lease_until", "cancel_requested_at"}),
            lenient=lenient,
        )
        lease = cls(
            task_id=parse_id(members["task_id"], f"{path}.task_id"),
            attempt_id=parse_id(members["attempt_id"], f"{path}.attempt_id"),
            epoch=parse_counter(members["epoch"], f"{path}.epoch"),
            state=_word(AttemptState, members["state"], f"{path}.state"),
            active=read_flag(members["active"], f"{path}.active"),
            server_time=parse_time(members["server_time"], f"{path}.server_time"),
            lease_until=_optional_time(members, "lease_until", path),
            cancel_requested_at=_optional_time(members, "cancel_requested_at", path),
        )
        if lease.active and (lease.state is AttemptState.ENDED or lease.lease_until is None):
            raise InvalidValue(f"{path}.active", "goes with an attempt that has not ended and has a lease_until")
        return lease

    def to_body(self) -> dict[str, Any]:
        """The body as it goes on the wire."""
        body: dict[str, Any] = {
            "task_id": self.task_id,
            "attempt_id": self.attempt_id,
            "epoch": str(self.epoch),
            "state": self.state.value,
            "active": self.active,
            "server_time": format_time(self.server_time),
        }
        _put_time(body, "lease_until", self.lease_until)
        _put_time(body, "cancel_requested_at", self.cancel_requested_at)
        return body


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """A worker's report: the body of task.finish. `result` is canonical JSON text and stays out of repr.

    FAILED, UNKNOWN and CANCELLED carry an error code, SUCCEEDED none; `retryable` goes with FAILED alone.
    """

    attempt: Attempt
    outcome: Outcome
    result: str | None = field(default=None, repr=False)
    error_code: str | None = None
    retryable: bool = False

    @classmethod
    def parse(cls, body: object, path: str = "body", *, lenient: bool = False) -> Self:
        """Read an untrusted body; raises InvalidValue."""
        members = read_object(
            body, path, _PROOF | {"outcome"}, frozenset({"result", "error_code", "retryable"}), lenient=lenient
        )
        outcome = _word(Outcome, members["outcome"], f"{path}.outcome")
        return cls(
            attempt=Attempt.parse({name: members[name] for name in _PROOF}, path),
            outcome=outcome,
            result=_result(members["result"], f"{path}.result") if "result" in members else None,
            error_code=_error_code(outcome, members, path),
            retryable=_retryable(outcome, members, path),
        )

    def to_body(self) -> dict[str, Any]:
        """The body as it goes on the wire, with the secret and the result."""
        body = self.attempt.to_body() | {"outcome": self.outcome.value}
        if self.result is not None:
            body["result"] = msgspec.Raw(self.result.encode())
        if self.error_code is not None:
            body["error_code"] = self.error_code
        if self.retryable:
            body["retryable"] = True
        return body


def _result(value: Value | msgspec.Raw, path: str) -> str:
    if value is None:
        raise InvalidValue(path, "must not be null; leave it out")
    text = canonical(value)
    if len(text) > Limits().result_bytes:
        raise InvalidValue(path, f"is larger than {Limits().result_bytes} bytes")
    return text.decode()


def _error_code(outcome: Outcome, members: dict[str, Any], path: str) -> str | None:
    code = members.get("error_code")
    if outcome is Outcome.SUCCEEDED:
        if "error_code" in members and code != "":
            raise InvalidValue(f"{path}.error_code", "does not go with SUCCEEDED")
        return None
    return parse_name(code, f"{path}.error_code")


def _retryable(outcome: Outcome, members: dict[str, Any], path: str) -> bool:
    retryable = read_flag(members.get("retryable", False), f"{path}.retryable")
    if retryable and outcome is not Outcome.FAILED:
        raise InvalidValue(f"{path}.retryable", "goes with FAILED alone")
    return retryable


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What was recorded when a message first arrived. The same message id or the same report gets the same receipt."""

    operation: Operation
    task_id: str
    attempt_id: str
    epoch: int
    disposition: Disposition
    task_state: TaskState
    task_version: int
    recorded_at: datetime
    lease_until: datetime | None = None
    decision: Decision | None = None
    next_available_at: datetime | None = None

    @classmethod
    def parse(cls, body: object, path: str = "body", *, lenient: bool = False) -> Self:
        """Read an untrusted body; raises InvalidValue."""
        members = read_object(
            body,
            path,
            _NAMED | {"operation", "disposition", "task_state", "task_version", "recorded_at"},
            frozenset({"lease_until", "decision", "next_available_at"}),
            lenient=lenient,
        )
        decision = members.get("decision")
        return cls(
            operation=_word(Operation, members["operation"], f"{path}.operation"),
            task_id=parse_id(members["task_id"], f"{path}.task_id"),
            attempt_id=parse_id(members["attempt_id"], f"{path}.attempt_id"),
            epoch=parse_counter(members["epoch"], f"{path}.epoch"),
            disposition=_word(Disposition, members["disposition"], f"{path}.disposition"),
            task_state=_word(TaskState, members["task_state"], f"{path}.task_state"),
            task_version=parse_counter(members["task_version"], f"{path}.task_version"),
            recorded_at=parse_time(members["recorded_at"], f"{path}.recorded_at"),
            lease_until=_optional_time(members, "lease_until", path),
            decision=_word(Decision, decision, f"{path}.decision") if "decision" in members else None,
            next_available_at=_optional_time(members, "next_available_at", path),
        )

    def to_body(self) -> dict[str, Any]:
        """The body as it goes on the wire."""
        body: dict[str, Any] = {
            "operation": self.operation.value,
            "task_id": self.task_id,
            "attempt_id": self.attempt_id,
            "epoch": str(self.epoch),
            "disposition": self.disposition.value,
            "task_state": self.task_state.value,
            "task_version": str(self.task_version),
            "recorded_at": format_time(self.recorded_at),
        }
        _put_time(body, "lease_until", self.lease_until)
        if self.decision is not None:
            body["decision"] = self.decision.value
        _put_time(body, "next_available_at", self.next_available_at)
        return body


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """Answer to task.start, task.renew and task.finish: what was recorded then, and what holds now."""

    disposition: Disposition
    receipt: Receipt
    lease: Lease

    @classmethod
    def parse(cls, body: object, path: str = "body", *, lenient: bool = False) -> Self:
        """Read an untrusted body; raises InvalidValue."""
        members = read_object(body, path, frozenset({"disposition", "receipt", "lease"}), lenient=lenient)
        result = cls(
            disposition=_word(Disposition, members["disposition"], f"{path}.disposition"),
            receipt=Receipt.parse(members["receipt"], f"{path}.receipt", lenient=lenient),
            lease=Lease.parse(members["lease"], f"{path}.lease", lenient=lenient),
        )
        if result.disposition is not result.receipt.disposition:
            raise InvalidValue(f"{path}.disposition", "must be the receipt's")
        return result

    def to_body(self) -> dict[str, Any]:
        """The body as it goes on the wire."""
        return {
            "disposition": self.disposition.value,
            "receipt": self.receipt.to_body(),
            "lease": self.lease.to_body(),
        }


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
        if ("concurrency_key" in members) != ("concurrency_token" in members):
            raise InvalidValue(f"{path}.concurrency_token", "goes with concurrency_key, and neither without the other")
        key, token, origin = (members.get(name) for name in ("concurrency_key", "concurrency_token", "retry_of"))
        task = cls(
            task_id=parse_id(members["task_id"], f"{path}.task_id"),
            queue_id=parse_id(members["queue_id"], f"{path}.queue_id"),
            handler=parse_name(members["handler"], f"{path}.handler", max_length=128),
            handler_version=parse_name(members["handler_version"], f"{path}.handler_version"),
            payload_version=parse_name(members["payload_version"], f"{path}.payload_version"),
            payload=members["payload"],
            attempt_number=as_int(members["attempt_number"], f"{path}.attempt_number", 1, INT_MAX),
            max_attempts=as_int(members["max_attempts"], f"{path}.max_attempts", 1, INT_MAX),
            attempt_timeout_ms=as_int(members["attempt_timeout_ms"], f"{path}.attempt_timeout_ms", 1, INT_MAX),
            deadline_at=parse_time(members["deadline_at"], f"{path}.deadline_at"),
            priority=as_int(members["priority"], f"{path}.priority", 0, 9) if "priority" in members else 0,
            effect_uncertain=read_flag(members.get("effect_uncertain", False), f"{path}.effect_uncertain"),
            concurrency_key=parse_key(key, f"{path}.concurrency_key") if "concurrency_key" in members else None,
            concurrency_token=parse_counter(token, f"{path}.concurrency_token") if key is not None else None,
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
class Assignment:
    """The push task.assign: a reservation. Only a confirmed start allows the handler to run."""

    task: AssignedTask
    attempt: Attempt
    lease: Lease

    @classmethod
    def parse(cls, body: object, path: str = "body", *, lenient: bool = False) -> Self:
        """Read an untrusted body; raises InvalidValue."""
        members = read_object(body, path, frozenset({"task", "attempt", "lease"}), lenient=lenient)
        return cls(
            task=AssignedTask.parse(members["task"], f"{path}.task", lenient=lenient),
            attempt=Attempt.parse(members["attempt"], f"{path}.attempt", lenient=lenient),
            lease=Lease.parse(members["lease"], f"{path}.lease", lenient=lenient),
        )

    def to_body(self) -> dict[str, Any]:
        """The body as it goes on the wire, with the secret and the payload."""
        return {"task": self.task.to_body(), "attempt": self.attempt.to_body(), "lease": self.lease.to_body()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancellation:
    """The push task.cancel: somebody asked for the end of exactly this attempt's task."""

    task_id: str
    attempt_id: str
    epoch: int
    cancel_requested_at: datetime

    @classmethod
    def parse(cls, body: object, path: str = "body", *, lenient: bool = False) -> Self:
        """Read an untrusted body; raises InvalidValue."""
        members = read_object(body, path, _NAMED | {"cancel_requested_at"}, lenient=lenient)
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


def _optional_time(members: dict[str, Any], name: str, path: str) -> datetime | None:
    return parse_time(members[name], f"{path}.{name}") if name in members else None


def _put_time(body: dict[str, Any], name: str, moment: datetime | None) -> None:
    if moment is not None:
        body[name] = format_time(moment)

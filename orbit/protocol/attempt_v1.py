"""What `pulse.worker.v1` says about attempts: the proof, the lease, the report and the receipt.

An attempt is one claim of a task. Its proof (ids, epoch and secret) gives the right to speak about it; its lease says
whether that still counts. A receipt is history, what was recorded when a message first arrived; a lease is what holds
now. The two are never mixed: an old receipt revives nothing. Sources: seeds worker-contract, worker-sdk, safe-retry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

import msgspec

from orbit.protocol.errors import InvalidValue
from orbit.protocol.frame import parse_code
from orbit.protocol.http_v1 import TaskState
from orbit.protocol.members import optional_time, put_time, read_flag, read_object, read_word
from orbit.protocol.result import result_text
from orbit.protocol.values import Secret, format_time, parse_counter, parse_id, parse_time

_PROOF: Final = frozenset({"task_id", "attempt_id", "epoch", "lease_secret"})
_NAMED: Final = frozenset({"task_id", "attempt_id", "epoch"})
_RECEIPT: Final = _NAMED | {"operation", "disposition", "task_state", "task_version", "recorded_at"}
_RECEIPT_EXTRA: Final = frozenset({"lease_until", "decision", "next_available_at"})


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


class _Extra(NamedTuple):
    """Which of a receipt's changing members are there."""

    required: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()


RECEIPTS: Final[Mapping[tuple[Operation, Disposition], _Extra]] = MappingProxyType(
    {
        (Operation.START, Disposition.APPLIED): _Extra(required=frozenset({"lease_until"})),
        (Operation.RENEW, Disposition.APPLIED): _Extra(required=frozenset({"lease_until"})),
        (Operation.FINISH, Disposition.APPLIED): _Extra(optional=frozenset({"decision", "next_available_at"})),
        (Operation.FINISH, Disposition.EVIDENCE_ONLY): _Extra(),
    }
)
"""Every receipt that there is: only a report can be mere evidence, and evidence decides nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfAttempt:
    """What every statement about an attempt begins with."""

    task_id: str
    attempt_id: str
    epoch: int

    @property
    def identity(self) -> tuple[str, str, int]:
        """Which attempt this is about: its task, its id and its epoch."""
        return self.task_id, self.attempt_id, self.epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt(OfAttempt):
    """An attempt and the right to speak about it: the body of worker.resume, task.start and task.renew."""

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
class Lease(OfAttempt):
    """What an attempt may do now. `active`: its reports still count; a cancel request takes away only going on.

    `lease_until` and `server_time` are the database's clock, to be used only as a difference.
    """

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
            state=read_word(AttemptState, members["state"], f"{path}.state"),
            active=read_flag(members["active"], f"{path}.active"),
            server_time=parse_time(members["server_time"], f"{path}.server_time"),
            lease_until=optional_time(members, "lease_until", path),
            cancel_requested_at=optional_time(members, "cancel_requested_at", path),
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
        put_time(body, "lease_until", self.lease_until)
        put_time(body, "cancel_requested_at", self.cancel_requested_at)
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
        outcome = read_word(Outcome, members["outcome"], f"{path}.outcome")
        return cls(
            attempt=Attempt.parse({name: members[name] for name in _PROOF}, path),
            outcome=outcome,
            result=result_text(members["result"], f"{path}.result") if "result" in members else None,
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


def _error_code(outcome: Outcome, members: dict[str, Any], path: str) -> str | None:
    code = members.get("error_code")
    if outcome is Outcome.SUCCEEDED:
        if "error_code" in members and code != "":
            raise InvalidValue(f"{path}.error_code", "does not go with SUCCEEDED")
        return None
    return parse_code(code, f"{path}.error_code")


def _retryable(outcome: Outcome, members: dict[str, Any], path: str) -> bool:
    retryable = read_flag(members.get("retryable", False), f"{path}.retryable")
    if retryable and outcome is not Outcome.FAILED:
        raise InvalidValue(f"{path}.retryable", "goes with FAILED alone")
    return retryable


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt(OfAttempt):
    """What was recorded when a message first arrived. The same message id or the same report gets the same receipt.

    `decision` is a `Decision` or one that only a newer server knows; compare with `==`.
    """

    operation: Operation
    disposition: Disposition
    task_state: TaskState
    task_version: int
    recorded_at: datetime
    lease_until: datetime | None = None
    decision: str | None = None
    next_available_at: datetime | None = None

    @classmethod
    def parse(cls, body: object, path: str = "body", *, lenient: bool = False) -> Self:
        """Read an untrusted body; raises InvalidValue."""
        members = read_object(body, path, _RECEIPT, _RECEIPT_EXTRA, lenient=lenient)
        operation = read_word(Operation, members["operation"], f"{path}.operation")
        disposition = read_word(Disposition, members["disposition"], f"{path}.disposition")
        _check_receipt(operation, disposition, members, path)
        return cls(
            operation=operation,
            task_id=parse_id(members["task_id"], f"{path}.task_id"),
            attempt_id=parse_id(members["attempt_id"], f"{path}.attempt_id"),
            epoch=parse_counter(members["epoch"], f"{path}.epoch"),
            disposition=disposition,
            task_state=read_word(TaskState, members["task_state"], f"{path}.task_state"),
            task_version=parse_counter(members["task_version"], f"{path}.task_version"),
            recorded_at=parse_time(members["recorded_at"], f"{path}.recorded_at"),
            lease_until=optional_time(members, "lease_until", path),
            decision=parse_code(members["decision"], f"{path}.decision") if "decision" in members else None,
            next_available_at=optional_time(members, "next_available_at", path),
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
        put_time(body, "lease_until", self.lease_until)
        if self.decision is not None:
            body["decision"] = str(self.decision)
        put_time(body, "next_available_at", self.next_available_at)
        return body


def _check_receipt(operation: Operation, disposition: Disposition, members: dict[str, Any], path: str) -> None:
    extra = RECEIPTS.get((operation, disposition))
    if extra is None:
        raise InvalidValue(f"{path}.disposition", "does not go with the operation")
    for name in sorted(_RECEIPT_EXTRA):
        if name in extra.required and name not in members:
            raise InvalidValue(f"{path}.{name}", "is required with this operation")
        if name in members and name not in extra.required | extra.optional:
            raise InvalidValue(f"{path}.{name}", "does not go with this operation and disposition")


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
            disposition=read_word(Disposition, members["disposition"], f"{path}.disposition"),
            receipt=Receipt.parse(members["receipt"], f"{path}.receipt", lenient=lenient),
            lease=Lease.parse(members["lease"], f"{path}.lease", lenient=lenient),
        )
        if result.disposition is not result.receipt.disposition:
            raise InvalidValue(f"{path}.disposition", "must be the receipt's")
        if result.receipt.identity != result.lease.identity:
            raise InvalidValue(f"{path}.lease", "must be of the receipt's attempt")
        return result

    def to_body(self) -> dict[str, Any]:
        """The body as it goes on the wire."""
        return {
            "disposition": self.disposition.value,
            "receipt": self.receipt.to_body(),
            "lease": self.lease.to_body(),
        }

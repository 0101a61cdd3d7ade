"""What became of a task, as the HTTP interface tells it: attempts with their evidence, events, what persons changed.

Responses only, under the rules of `http_v1`. `repr` never shows a result or what a person gave as evidence.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from orbit.protocol.http_v1 import Id, Page, Time, Version


class EvidenceRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A report that came without authority: it was kept and changed nothing."""

    message_id: Id
    outcome: str
    received_at: Time
    retryable: bool = False
    error_code: str | UnsetType = UNSET
    result: Raw | UnsetType = UNSET

    def __repr__(self) -> str:
        return f"EvidenceRecord(message_id={self.message_id!r}, outcome={self.outcome!r})"


class AttemptRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt of a task. Absent means not yet or not applicable.

    `outcome` is the worker's word (SUCCEEDED, FAILED, UNKNOWN, CANCELLED), or LEASE_EXPIRED or UNSTARTED without one.
    `decision`, `delay_ms` and `next_available_at` say what became of the task.
    """

    attempt_id: Id
    epoch: Version
    state: str
    instance_id: Id
    node: str
    leased_at: Time
    lease_until: Time | UnsetType = UNSET
    started_at: Time | UnsetType = UNSET
    timeout_at: Time | UnsetType = UNSET
    ended_at: Time | UnsetType = UNSET
    outcome: str | UnsetType = UNSET
    error_code: str | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    retryable: bool = False
    decision: str | UnsetType = UNSET
    delay_ms: int | UnsetType = UNSET
    next_available_at: Time | UnsetType = UNSET
    concurrency_key: str | UnsetType = UNSET
    concurrency_token: Version | UnsetType = UNSET
    evidence: list[EvidenceRecord] = msgspec.field(default_factory=list)

    def __repr__(self) -> str:
        return f"AttemptRecord(attempt_id={self.attempt_id!r}, epoch={self.epoch!r}, state={self.state!r})"


class AuditEntry(Struct, frozen=True, kw_only=True):
    """What somebody changed by hand. `actor` is a credential's id; `evidence` is what a resolution was given."""

    audit_no: Version
    at: Time
    actor: str
    action: str
    details: Raw
    evidence: Raw | UnsetType = UNSET

    def __repr__(self) -> str:
        return f"AuditEntry(audit_no={self.audit_no!r}, actor={self.actor!r}, action={self.action!r})"


class EventPage(Page, frozen=True, kw_only=True):
    """GET /v1/tasks/{task_id}/events, by task version: the texts that consumers get."""

    events: list[Raw]

    def __repr__(self) -> str:
        return f"EventPage({len(self.events)} events)"


class AuditPage(Page, frozen=True, kw_only=True):
    """GET /v1/tasks/{task_id}/audit, oldest first."""

    entries: list[AuditEntry]


class AttemptPage(Page, frozen=True, kw_only=True):
    """GET /v1/tasks/{task_id}/attempts, oldest first. A page may be shorter than asked for: results are large."""

    attempts: list[AttemptRecord]

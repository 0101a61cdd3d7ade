"""What can become of one event: the words that code, logs, metrics and documents share.

    EventRefused           this event will never be applied as it is; not acknowledged, said loudly each time
    ├── InvalidEvent       not an event of results for this receiver
    ├── EventConflict      the same event id is known with other content
    └── VersionConflict    the view has the same task version from another event

Failures of the database are `orbit.mysql.errors`: CommitUnconfirmed and NotCommitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final


class Outcome(StrEnum):
    """One word for each way an event's handling can end."""

    APPLIED = "applied"
    """Recorded, and the view advanced."""
    STALE = "stale"
    """Recorded; the view already had a higher version."""
    DUPLICATE = "duplicate"
    """Recorded before with the same content; nothing changed."""
    EVENT_CONFLICT = "event_conflict"
    """The same event id was recorded with other content; nothing changed."""
    VERSION_CONFLICT = "version_conflict"
    """The view has the same version from another event; everything was rolled back."""
    INVALID = "invalid"
    """Refused before or by the database, and would be every time."""
    UNCONFIRMED = "unconfirmed"
    """COMMIT was sent and not confirmed; only applying the event again can tell."""
    UNAVAILABLE = "unavailable"
    """The database could not be used; certainly nothing changed."""

    @property
    def acknowledged(self) -> bool:
        """Whether the delivery may be acknowledged: the event is in the inbox, committed."""
        return self in _ACKNOWLEDGED


_ACKNOWLEDGED: Final = frozenset({Outcome.APPLIED, Outcome.STALE, Outcome.DUPLICATE})


@dataclass(frozen=True, slots=True)
class Applied:
    """An event that is in the inbox, committed.

    `applied` says whether the transaction that recorded it advanced the view, be it this call's or an earlier one;
    `duplicate` says that it was an earlier one.
    """

    applied: bool
    duplicate: bool

    @property
    def outcome(self) -> Outcome:
        """The word for it."""
        if self.duplicate:
            return Outcome.DUPLICATE
        return Outcome.APPLIED if self.applied else Outcome.STALE


class EventRefused(Exception):
    """This event will not be applied, now or later. Carries identities and digests, never content."""

    outcome: ClassVar[Outcome]


class InvalidEvent(EventRefused):
    """The event cannot belong in this inbox. `reason` is a fixed phrase."""

    outcome = Outcome.INVALID

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class EventConflict(EventRefused):
    """The inbox has this event id with other content; both SHA-256 digests are there for the investigation."""

    outcome = Outcome.EVENT_CONFLICT

    def __init__(self, event_id: str, recorded_sha256: str, given_sha256: str) -> None:
        super().__init__(event_id, recorded_sha256, given_sha256)
        self.event_id = event_id
        self.recorded_sha256 = recorded_sha256
        self.given_sha256 = given_sha256

    def __str__(self) -> str:
        return f"event {self.event_id} is recorded with digest {self.recorded_sha256}, given with {self.given_sha256}"


class VersionConflict(EventRefused):
    """The view of this task has this version from another event."""

    outcome = Outcome.VERSION_CONFLICT

    def __init__(self, event_id: str, task_id: str, task_version: int) -> None:
        super().__init__(event_id, task_id, task_version)
        self.event_id = event_id
        self.task_id = task_id
        self.task_version = task_version

    def __str__(self) -> str:
        return f"version {self.task_version} of task {self.task_id} came from another event than {self.event_id}"

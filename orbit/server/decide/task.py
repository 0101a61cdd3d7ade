"""What may happen to a task: its states, the actions on them and the table of changes.

Pure: facts in, decision out. The ledger writes what is decided here and in `decide.attempt`, `decide.cancel` and
`decide.recovery`.

    submit ──▶ WAITING ──claim──▶ LEASED ──start──▶ RUNNING
                  │ ▲                │                 │
                  │ └───requeued─────┼─────────────────┤ the attempt's end: `decide.attempt`
                  │                  │                 ▼
                  └──────cancel──────┴──▶    SUCCEEDED FAILED CANCELLED NEEDS_REVIEW
                                                  ▲      ▲        ▲         │
                                                  └──────┴────────┴─────────┘ a person: `decide.recovery`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from orbit.protocol.attempt_v1 import Decision
from orbit.protocol.http_v1 import EventType, TaskState


class Action(StrEnum):
    """What somebody wants of a task."""

    SUBMIT = "submit"
    CLAIM = "claim"
    START = "start"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One step of a task, which is one new version and one event.

    `result` is canonical JSON text. `effect_uncertain` None leaves the task's mark as it is: nothing takes it back by
    saying nothing. `cancel_requested` notes that somebody asked for the end that this is. `attempt_id` names the
    attempt that was claimed, started or ended; `claims` spends one of the task's attempts. `delay_ms` and
    `available_at` go with the way back to WAITING. `node` names the node that decided without a worker's word.
    """

    state: TaskState
    event_type: EventType
    result: str | None = field(default=None, repr=False)
    error_code: str | None = None
    effect_uncertain: bool | None = None
    cancel_requested: bool = False
    attempt_id: str | None = None
    claims: bool = False
    decision: Decision | None = None
    delay_ms: int | None = None
    available_at: datetime | None = None
    node: str | None = None


TRANSITIONS: Final[Mapping[tuple[TaskState | None, Action], Change]] = MappingProxyType(
    {
        (None, Action.SUBMIT): Change(state=TaskState.WAITING, event_type=EventType.SUBMITTED),
        (TaskState.WAITING, Action.CLAIM): Change(state=TaskState.LEASED, event_type=EventType.LEASED, claims=True),
        (TaskState.LEASED, Action.START): Change(state=TaskState.RUNNING, event_type=EventType.STARTED),
    }
)
"""Every change on the way to an attempt's end; None stands for no task yet."""

COMPLETED: Final = frozenset({TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED})
"""States that nothing leaves. NEEDS_REVIEW is none of them: it waits for a person (seed safe-retry 3)."""


def submit() -> Change:
    """Decide the first version of a task."""
    return TRANSITIONS[None, Action.SUBMIT]


def claim(attempt_id: str) -> Change:
    """Decide what claiming a WAITING task changes."""
    return replace(TRANSITIONS[TaskState.WAITING, Action.CLAIM], attempt_id=attempt_id)


def start(attempt_id: str) -> Change:
    """Decide what the permission to run changes."""
    return replace(TRANSITIONS[TaskState.LEASED, Action.START], attempt_id=attempt_id)

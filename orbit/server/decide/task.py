"""What may happen to a task: its states, the actions on them and the table of changes.

Pure: facts in, decision out. The ledger writes what is decided here.

    submit ──▶ WAITING ──cancel──▶ CANCELLED
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from orbit.protocol.errors import ApiError, ErrorCode
from orbit.protocol.http_v1 import EventType, TaskState


class Action(StrEnum):
    """What somebody wants of a task."""

    SUBMIT = "submit"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One step of a task, which is one new version and one event.

    `result` is canonical JSON text. `cancel_requested` notes that somebody asked for the end that this is.
    """

    state: TaskState
    event_type: EventType
    result: str | None = None
    error_code: str | None = None
    effect_uncertain: bool = False
    cancel_requested: bool = False


TRANSITIONS: Final[Mapping[tuple[TaskState | None, Action], Change]] = MappingProxyType(
    {
        (None, Action.SUBMIT): Change(state=TaskState.WAITING, event_type=EventType.SUBMITTED),
        (TaskState.WAITING, Action.CANCEL): Change(
            state=TaskState.CANCELLED, event_type=EventType.CANCELLED, cancel_requested=True
        ),
    }
)
"""Every change there is; None stands for a task that does not exist yet."""

COMPLETED: Final = frozenset({TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED})
"""States that nothing leaves. NEEDS_REVIEW is none of them: it waits for a person (seed safe-retry 3)."""


def submit() -> Change:
    """Decide the first version of a task."""
    return TRANSITIONS[None, Action.SUBMIT]


def cancel(state: TaskState) -> Change | None:
    """Decide what a wish to cancel changes; None when the task is cancelled already and the same answer is due.

    Raises ApiError STATE_CONFLICT where cancelling is no longer possible.
    """
    if state is TaskState.CANCELLED:
        return None
    change = TRANSITIONS.get((state, Action.CANCEL))
    if change is None:
        raise ApiError(ErrorCode.STATE_CONFLICT, f"the task is {state.value} and cannot be cancelled any more")
    return change

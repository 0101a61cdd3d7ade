"""What a wish to cancel does to a task: the table over its state and whether an effect of it is uncertain.

| state        | every effect is known      | an effect is uncertain                    |
| ------------ | -------------------------- | ----------------------------------------- |
| WAITING      | CANCELLED                  | NEEDS_REVIEW                              |
| LEASED       | CANCELLED, attempt ended   | NEEDS_REVIEW, attempt ended               |
| RUNNING      | the intent is stored       | the intent is stored                      |
| NEEDS_REVIEW | -                          | the intent is stored; a person resolves it |
| CANCELLED    | answered again             | -                                         |
| others       | refused                    | -                                         |

A task that nobody runs ends at once, but an effect that nobody knows is not cancelled away: such a task needs a person.
A stored intent is a fact of the task and no change of its state, so it has neither version nor event: it is seen in
`cancel_requested_at`, told to the worker, and stops every later attempt. Only the worker's word makes a running task
CANCELLED (`decide.attempt`). Asking again, whatever became of the task meanwhile, changes nothing. Source: seed
safe-retry sections 2 and 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from types import MappingProxyType
from typing import Final

from orbit.protocol.attempt_v1 import Decision
from orbit.protocol.errors import ApiError, ErrorCode
from orbit.protocol.http_v1 import EventType, TaskState
from orbit.server.decide.task import Change


class Wish(Enum):
    """What becomes of a wish to cancel that changes no state."""

    STORED = "the intent is stored"
    KNOWN = "the same answer is due"


CANCEL_REQUESTED: Final = "CANCEL_REQUESTED"
"""Error code of a task whose cancellation meets an uncertain effect, and of an attempt that it ended."""

_CANCELLED: Final = Change(state=TaskState.CANCELLED, event_type=EventType.CANCELLED, cancel_requested=True)
_REVIEW: Final = Change(
    state=TaskState.NEEDS_REVIEW,
    event_type=EventType.NEEDS_REVIEW,
    error_code=CANCEL_REQUESTED,
    cancel_requested=True,
    decision=Decision.RECONCILIATION_REQUIRED,
)

CANCELLING: Final[Mapping[tuple[TaskState, bool], Change | Wish]] = MappingProxyType(
    {
        (TaskState.WAITING, False): _CANCELLED,
        (TaskState.WAITING, True): _REVIEW,
        (TaskState.LEASED, False): _CANCELLED,
        (TaskState.LEASED, True): _REVIEW,
        (TaskState.RUNNING, False): Wish.STORED,
        (TaskState.RUNNING, True): Wish.STORED,
        (TaskState.NEEDS_REVIEW, True): Wish.STORED,
        (TaskState.CANCELLED, False): Wish.KNOWN,
    }
)
"""By state and `effect_uncertain`; what is not here can no longer be cancelled."""


def cancel(
    state: TaskState, *, effect_uncertain: bool, requested: bool, attempt_id: str | None = None
) -> Change | Wish:
    """Decide what a wish to cancel does; `requested` says that the task has its intent already.

    `attempt_id` is the attempt that a LEASED task's end ends. Raises ApiError STATE_CONFLICT where it is too late.
    """
    if requested:
        return Wish.KNOWN
    found = CANCELLING.get((state, effect_uncertain))
    if found is None:
        raise ApiError(ErrorCode.STATE_CONFLICT, f"the task is {state.value} and cannot be cancelled any more")
    return replace(found, attempt_id=attempt_id) if isinstance(found, Change) else found

"""What a person may do about a task that the platform cannot go on with. No SQL, no clock.

| state                    | resolve                          | retry                    |
| ------------------------ | -------------------------------- | ------------------------ |
| NEEDS_REVIEW             | SUCCEEDED, FAILED or CANCELLED   | a new task, this one stays |
| FAILED, CANCELLED        | refused                          | a new task, this one stays |
| SUCCEEDED                | refused                          | refused                  |
| WAITING, LEASED, RUNNING | refused: the platform is at it   | refused                  |

A resolution is the only way but an authorised success to take an uncertain effect back: it says what the effect was.
Sources: seed safe-retry section 2, design section 6.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import UNSET

from orbit.protocol import strict_json
from orbit.protocol.errors import ApiError, ErrorCode, InvalidValue
from orbit.protocol.http_v1 import EventType, Resolution, ResolveTask, TaskState
from orbit.protocol.result import check_numbers, result_text
from orbit.server.decide.task import Change

if TYPE_CHECKING:
    from orbit.protocol.limits import Limits

RESOLVED: Final[Mapping[Resolution, tuple[TaskState, EventType]]] = MappingProxyType(
    {
        Resolution.SUCCEEDED: (TaskState.SUCCEEDED, EventType.SUCCEEDED),
        Resolution.FAILED: (TaskState.FAILED, EventType.FAILED),
        Resolution.CANCELLED: (TaskState.CANCELLED, EventType.CANCELLED),
    }
)
RETRIED: Final = frozenset({TaskState.NEEDS_REVIEW, TaskState.FAILED, TaskState.CANCELLED})
"""States in which a task may be done again as a new one."""


def check(request: ResolveTask) -> None:
    """Check which members go with the outcome. Raises InvalidValue."""
    if request.result is not UNSET and request.outcome is not Resolution.SUCCEEDED:
        raise InvalidValue("result", "goes with SUCCEEDED only")
    if request.error_code is UNSET and request.outcome is Resolution.FAILED:
        raise InvalidValue("error_code", "is required with FAILED")
    if request.error_code is not UNSET and request.outcome is Resolution.SUCCEEDED:
        raise InvalidValue("error_code", "does not go with SUCCEEDED")


def result(request: ResolveTask, limits: Limits) -> str | None:
    """The canonical text of a resolution's result, under the rules of a worker's. Raises InvalidValue."""
    if request.result is UNSET:
        return None
    text = result_text(request.result)
    check_numbers(text, limits, "result")
    return text


def evidence(request: ResolveTask, limits: Limits) -> str:
    """The canonical text of the evidence: a text that is not empty, or an object. Raises InvalidValue, InvalidJSON."""
    data = bytes(request.evidence)
    value = strict_json.parse(data, max_bytes=len(data))
    if not isinstance(value, str | dict) or not value:
        raise InvalidValue("evidence", "must be a text or an object, and not empty")
    if strict_json.depth(value) > limits.content_depth:
        raise InvalidValue("evidence", f"must not nest deeper than {limits.content_depth} levels")
    strict_json.number_bounds(value, limits, "evidence")
    text = strict_json.canonical(value)
    if len(text) > limits.evidence_bytes:
        raise InvalidValue("evidence", f"must not exceed {limits.evidence_bytes} bytes")
    return text.decode()


def resolve(state: TaskState, request: ResolveTask, given: str | None) -> Change:
    """Decide what a person's word does; `given` is the result's canonical text. Raises ApiError STATE_CONFLICT."""
    if state is not TaskState.NEEDS_REVIEW:
        raise ApiError(ErrorCode.STATE_CONFLICT, f"the task is {state.value}: only one under review can be resolved")
    resolved, event_type = RESOLVED[request.outcome]
    return Change(
        state=resolved,
        event_type=event_type,
        result=given,
        error_code=None if request.error_code is UNSET else request.error_code,
        effect_uncertain=False,
    )


def retry(state: TaskState) -> None:
    """Raise ApiError STATE_CONFLICT unless the task may be done again as a new one."""
    if state not in RETRIED:
        raise ApiError(
            ErrorCode.STATE_CONFLICT,
            f"the task is {state.value}: one under review, failed or cancelled can be done again",
        )


def latest_start(now: datetime, created_at: datetime, latest_start_at: datetime | None) -> datetime | None:
    """The latest start of a task that is done again from `now` on: as long after its submission as the first time."""
    if latest_start_at is None:
        return None
    try:
        return now + (latest_start_at - created_at)
    except OverflowError:
        # As far as the calendar goes, in whichever direction: that is what was asked for.
        return latest_start_at

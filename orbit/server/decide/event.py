"""Freeze an event: its canonical text is made once, stored, and spliced into every frame that carries it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from orbit.protocol import strict_json
from orbit.protocol.values import format_time

if TYPE_CHECKING:
    from datetime import datetime

    from orbit.server.decide.task import Change


def freeze(
    *,
    event_id: str,
    queue_id: str,
    task_id: str,
    task_version: int,
    occurred_at: datetime,
    change: Change,
    effect_uncertain: bool,
    attempt_count: int,
    max_attempts: int,
) -> str:
    """Write the event of one change as canonical JSON text; what does not apply is left out (design section 5).

    `effect_uncertain` and `attempt_count` are the task's after the change. The counts, and the facts of a decision
    (seed safe-retry section 3), go with changes that are about an attempt or decide whether there is another one.
    """
    event: dict[str, strict_json.Value] = {
        "event_id": event_id,
        "event_type": change.event_type.value,
        "queue_id": queue_id,
        "task_id": task_id,
        "task_version": str(task_version),
        "state": change.state.value,
        "occurred_at": format_time(occurred_at),
    }
    if change.result is not None:
        event["result"] = msgspec.Raw(change.result.encode())
    if change.error_code is not None:
        event["error_code"] = change.error_code
    if effect_uncertain:
        event["effect_uncertain"] = True
    if change.attempt_id is not None:
        event["attempt_id"] = change.attempt_id
    if change.decision is not None:
        event["decision"] = change.decision.value
    if change.attempt_id is not None or change.decision is not None:
        event["attempt_count"] = attempt_count
        event["max_attempts"] = max_attempts
    if change.delay_ms is not None:
        event["delay_ms"] = change.delay_ms
    if change.available_at is not None:
        event["next_available_at"] = format_time(change.available_at)
    if change.node is not None:
        event["node"] = change.node
    return strict_json.canonical(event).decode()

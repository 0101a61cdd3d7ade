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
    *, event_id: str, queue_id: str, task_id: str, task_version: int, occurred_at: datetime, change: Change
) -> str:
    """Write the event of one change as canonical JSON text; what does not apply is left out (design section 5)."""
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
    if change.effect_uncertain:
        event["effect_uncertain"] = True
    return strict_json.canonical(event).decode()

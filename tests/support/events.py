"""Events for tests, with identities that a failure message can be read by."""

from __future__ import annotations

from typing import Any

import msgspec

from orbit.protocol.event import Event

QUEUE = "a" * 32
TASK = "c" * 32

_STATES = {
    "task.succeeded": "SUCCEEDED",
    "task.failed": "FAILED",
    "task.cancelled": "CANCELLED",
    "task.needs_review": "NEEDS_REVIEW",
}


def an_id(number: int, *, kind: str = "e") -> str:
    """An identifier that a failure message can be read by: a letter and a number."""
    return kind + f"{number:031x}"


def event_bytes(number: int = 1, *, version: int = 1, event_type: str = "task.succeeded", **changes: Any) -> bytes:
    """The JSON of one event; `result` may be msgspec.Raw, members that are None are left out."""
    members: dict[str, Any] = {
        "event_id": an_id(number),
        "event_type": event_type,
        "queue_id": QUEUE,
        "task_id": TASK,
        "task_version": str(version),
        "state": _STATES[event_type],
        "occurred_at": "2026-01-31T08:15:30Z",
        "error_code": "SOME_CODE" if event_type in {"task.failed", "task.needs_review"} else None,
        **changes,
    }
    return msgspec.json.encode({name: value for name, value in members.items() if value is not None})


def an_event(number: int = 1, *, version: int = 1, event_type: str = "task.succeeded", **changes: Any) -> Event:
    """One event, parsed."""
    return Event.parse(event_bytes(number, version=version, event_type=event_type, **changes))

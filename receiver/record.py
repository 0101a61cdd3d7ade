"""From an event to the values of its two rows, or InvalidEvent before any SQL. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from orbit.protocol.event import RESULT_EVENT_TYPES, Event
from receiver.outcome import InvalidEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What one event writes. `identity` is the inbox's key; the other two are the parameters of their statements."""

    identity: dict[str, str]
    inbox: dict[str, str]
    view: dict[str, str | int | None]

    def __repr__(self) -> str:
        return f"Record({self.identity['event_id']!r})"


def record_of(event: Event, *, consumer_name: str, queue_id: str) -> Record:
    """The rows of `event` for one consumer of one queue.

    `Event.parse` has checked everything that shows in the event alone (identities, version, state and members against
    the type, sizes). Left to check is that it belongs here: raises InvalidEvent for another queue's event and for one
    that reports no result (seed result-inbox section 4, first step).
    """
    if event.queue_id != queue_id:
        raise InvalidEvent("belongs to another queue")
    if event.event_type not in RESULT_EVENT_TYPES:
        raise InvalidEvent("reports no result")
    scope = {"consumer_name": consumer_name, "queue_id": queue_id}
    identity = {**scope, "event_id": event.event_id}
    return Record(
        identity=identity,
        inbox={**identity, "event": event.text, "event_sha256": event.sha256},
        view={
            **scope,
            "task_id": event.task_id,
            "task_version": event.task_version,
            "last_event_id": event.event_id,
            "state": event.state,
            # None becomes SQL NULL: the view mirrors its last event, also when an earlier one had a result.
            "result": event.result,
        },
    )

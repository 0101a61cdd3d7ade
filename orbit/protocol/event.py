"""The event: a change of a task's state, parsed once into checked fields, canonical text and digest.

Everything later - the inbox row, the view, comparisons - uses this one object. Members that are not declared here are
no error: they stay in the text and are digested, so that an event of a newer platform is kept whole. Sources: seed
result-inbox section 4 (what identifies an event, what is refused), seed safe-retry sections 2 and 3 (effect_uncertain,
what a decision about retrying is told with), seed worker-contract (counters, times, non-null results).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple, Self

from orbit.protocol import strict_json
from orbit.protocol.errors import InvalidValue
from orbit.protocol.limits import Limits
from orbit.protocol.members import optional_time
from orbit.protocol.strict_json import Number, Value, as_int
from orbit.protocol.values import COUNT_MAX, format_time, parse_counter, parse_id, parse_name, parse_time

CODE_LENGTH_MAX: Final = 64
"""Characters in an error code, a decision or a node's name."""


class Presence(Enum):
    """Whether an event of some type carries a member."""

    REQUIRED = "is required"
    OPTIONAL = "may be present"
    ABSENT = "must be absent"


class Rule(NamedTuple):
    """What one event type says about the task."""

    state: str
    error_code: Presence
    result: Presence


RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "task.submitted": Rule("WAITING", Presence.ABSENT, Presence.ABSENT),
        "task.leased": Rule("LEASED", Presence.ABSENT, Presence.ABSENT),
        "task.started": Rule("RUNNING", Presence.ABSENT, Presence.ABSENT),
        "task.requeued": Rule("WAITING", Presence.OPTIONAL, Presence.ABSENT),
        "task.succeeded": Rule("SUCCEEDED", Presence.ABSENT, Presence.OPTIONAL),
        "task.failed": Rule("FAILED", Presence.REQUIRED, Presence.OPTIONAL),
        "task.cancelled": Rule("CANCELLED", Presence.OPTIONAL, Presence.OPTIONAL),
        "task.needs_review": Rule("NEEDS_REVIEW", Presence.REQUIRED, Presence.ABSENT),
    }
)
"""Every event type, the state it brings, and which of the members that depend on the type it carries."""

EVENT_TYPES: Final = frozenset(RULES)
RESULT_EVENT_TYPES: Final = frozenset({"task.succeeded", "task.failed", "task.cancelled", "task.needs_review"})
"""The types that end or suspend a task: what a receiver of results may subscribe to."""

STATE_OF: Final[Mapping[str, str]] = MappingProxyType({name: rule.state for name, rule in RULES.items()})

_REQUIRED: Final = ("event_id", "event_type", "queue_id", "task_id", "task_version", "state", "occurred_at")


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Event:
    """One event that passed every check.

    `text` is the canonical text of the whole event, `sha256` the hexadecimal digest of its UTF-8 bytes; `result` is the
    canonical text of that member alone. `decision` to `node` tell how a task went on or ended (`delay_ms` in
    milliseconds); `node` is who noticed, when no report did. The repr shows identity and state, never `text` or
    `result`.
    """

    event_id: str
    event_type: str
    queue_id: str
    task_id: str
    task_version: int
    state: str
    occurred_at: datetime
    result: str | None
    error_code: str | None
    attempt_id: str | None
    decision: str | None
    delay_ms: int | None = None
    next_available_at: datetime | None = None
    attempt_count: int | None = None
    max_attempts: int | None = None
    node: str | None = None
    effect_uncertain: bool
    text: str
    sha256: str

    @classmethod
    def parse(cls, data: bytes | Value, *, limits: Limits | None = None) -> Self:
        """Check an event given as bytes or as an already parsed JSON object, which is left as it is.

        Raise InvalidJSON for bytes that are not strict JSON or are too large and for half a surrogate pair in an
        object that code built, InvalidValue for everything else.
        """
        limits = limits or Limits()
        if isinstance(data, bytes):
            data = strict_json.parse(data, max_bytes=limits.event_bytes, max_depth=limits.json_depth)
        elif strict_json.depth(data) > limits.json_depth:
            raise InvalidValue("event", f"nests more than {limits.json_depth} levels deep")
        if not isinstance(data, dict):
            raise InvalidValue("event", "must be an object")
        for name in _REQUIRED:
            if name not in data:
                raise InvalidValue(f"event.{name}", "is required")
        rule = _rule(data)
        occurred_at = parse_time(data["occurred_at"], "event.occurred_at")
        members = {**data, "occurred_at": format_time(occurred_at)}
        next_available_at = optional_time(data, "next_available_at", "event")
        if next_available_at is not None:
            members["next_available_at"] = format_time(next_available_at)
        result: bytes | None = None
        if "result" in data:
            result = _result(data["result"], limits)
            members["result"] = Number(result)  # spliced, so that a large result is written once
        text = strict_json.canonical(members)
        # Only an object that code built can fail here: canonical text is never longer than what was received.
        if len(text) > limits.event_bytes:
            raise InvalidValue("event", f"is larger than {limits.event_bytes} bytes")
        return cls(
            event_id=parse_id(data["event_id"], "event.event_id"),
            event_type=str(data["event_type"]),
            queue_id=parse_id(data["queue_id"], "event.queue_id"),
            task_id=parse_id(data["task_id"], "event.task_id"),
            task_version=parse_counter(data["task_version"], "event.task_version"),
            state=rule.state,
            occurred_at=occurred_at,
            result=None if result is None else result.decode(),
            error_code=_code(data, "error_code"),
            attempt_id=parse_id(data["attempt_id"], "event.attempt_id") if "attempt_id" in data else None,
            decision=_code(data, "decision"),
            delay_ms=_count(data, "delay_ms", 1),
            next_available_at=next_available_at,
            attempt_count=_count(data, "attempt_count", 0),
            max_attempts=_count(data, "max_attempts", 1),
            node=_code(data, "node"),
            effect_uncertain=_effect_uncertain(data),
            text=text.decode(),
            sha256=hashlib.sha256(text).hexdigest(),
        )

    def __repr__(self) -> str:
        return (
            f"Event(event_id={self.event_id!r}, event_type={self.event_type!r}, queue_id={self.queue_id!r},"
            f" task_id={self.task_id!r}, task_version={self.task_version}, state={self.state!r})"
        )


def _rule(data: dict[str, Value]) -> Rule:
    """Return the rule of the event's type after checking type, state and the members that depend on the type."""
    event_type = data["event_type"]
    rule = RULES.get(event_type) if isinstance(event_type, str) else None
    if rule is None:
        raise InvalidValue("event.event_type", "is not an event type")
    if data["state"] != rule.state:
        raise InvalidValue("event.state", "does not belong to the event type")
    for name, presence in (("error_code", rule.error_code), ("result", rule.result)):
        if (presence is Presence.REQUIRED and name not in data) or (presence is Presence.ABSENT and name in data):
            raise InvalidValue(f"event.{name}", f"{presence.value} with this event type")
    return rule


def _result(value: Value, limits: Limits) -> bytes:
    if value is None:
        raise InvalidValue("event.result", "must not be null")
    text = strict_json.canonical(value)
    if len(text) > limits.result_bytes:
        raise InvalidValue("event.result", f"is larger than {limits.result_bytes} bytes")
    return text


def _code(data: dict[str, Value], name: str) -> str | None:
    if name not in data:
        return None
    return parse_name(data[name], f"event.{name}", max_length=CODE_LENGTH_MAX)


def _count(data: dict[str, Value], name: str, minimum: int) -> int | None:
    return as_int(data[name], f"event.{name}", minimum, COUNT_MAX) if name in data else None


def _effect_uncertain(data: dict[str, Value]) -> bool:
    """Read the flag in its one form: senders omit it when false (seed safe-retry section 2), so only true is valid.

    Accepting false as well would give one event two texts, hence two digests, hence a conflict with itself.
    """
    if "effect_uncertain" in data and data["effect_uncertain"] is not True:
        raise InvalidValue("event.effect_uncertain", "must be true or absent")
    return "effect_uncertain" in data

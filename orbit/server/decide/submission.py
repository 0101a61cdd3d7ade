"""What a submit may hold beyond its types, and what makes two submits the same."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from orbit.protocol import strict_json
from orbit.protocol.errors import InvalidValue
from orbit.protocol.values import format_time, parse_time

if TYPE_CHECKING:
    from datetime import datetime

    from orbit.protocol.http_v1 import SubmitTask
    from orbit.protocol.limits import Limits


def check(request: SubmitTask, payload: strict_json.Value, limits: Limits) -> None:
    """Check the rules that span members, and the payload's size, nesting and numbers.

    `payload` is the parsed form of `request.payload`. The attempt timeout may exceed the task's timeout: the smaller
    one ends an attempt. A `latest_start_at` in the past is accepted; such a task is never started. Raises InvalidValue.
    """
    if request.retry.max_delay_ms < request.retry.initial_delay_ms:
        raise InvalidValue("retry.max_delay_ms", "must not be smaller than retry.initial_delay_ms")
    latest_start(request)
    if len(bytes(request.payload)) > limits.payload_bytes:
        raise InvalidValue("payload", f"must not exceed {limits.payload_bytes} bytes")
    if strict_json.depth(payload) > limits.content_depth:
        raise InvalidValue("payload", f"must not nest deeper than {limits.content_depth} levels")
    strict_json.number_bounds(payload, limits, "payload")


def latest_start(request: SubmitTask) -> datetime | None:
    """Read the latest start as a time, which proves that the date exists. Raises InvalidValue."""
    if request.latest_start_at is msgspec.UNSET:
        return None
    return parse_time(request.latest_start_at, "latest_start_at")


def digest(request: SubmitTask, payload: strict_json.Value) -> str:
    """SHA-256 of the content: defaults filled in, keys sorted, blanks gone, times in their one form.

    So an explicit default equals an omitted member, and the payload's layout does not matter; its numbers' text does.
    Digests are kept for ever: a member that a later version adds must stay out of them while it has its default.
    """
    content: dict[str, strict_json.Value] = {
        name: msgspec.to_builtins(getattr(request, name))
        for name in request.__struct_fields__
        if name != "payload" and getattr(request, name) is not msgspec.UNSET
    }
    start = latest_start(request)
    if start is not None:
        content["latest_start_at"] = format_time(start)
    content["payload"] = payload
    return hashlib.sha256(strict_json.canonical(content)).hexdigest()

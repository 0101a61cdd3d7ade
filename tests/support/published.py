"""Whether a real frame, as it passes, is one that the published schema of its subprotocol knows."""

from __future__ import annotations

import json
from typing import Any, Final, Literal

import jsonschema_rs

from orbit.protocol import events_v1, worker_v1
from orbit.protocol.schemas import events_schema, worker_schema

_DEFINITIONS: Final = {
    events_v1.SUBPROTOCOL: json.loads(events_schema())["$defs"],
    worker_v1.SUBPROTOCOL: json.loads(worker_schema())["$defs"],
}


def _validator(subprotocol: str, definition: str) -> jsonschema_rs.Draft202012Validator:
    whole = {"$defs": _DEFINITIONS[subprotocol], "$ref": f"#/$defs/{definition}"}
    return jsonschema_rs.Draft202012Validator(whole, validate_formats=True)


_VALIDATORS: Final = {
    (subprotocol, sender): _validator(subprotocol, f"{sender}Frame")
    for subprotocol in _DEFINITIONS
    for sender in ("client", "server")
}
_EVENT: Final = _validator(events_v1.SUBPROTOCOL, "event")


def check_frame(subprotocol: str, sender: Literal["client", "server"], data: str | bytes) -> None:
    """Assert that the schema accepts what `sender` sent, undeclared members excluded, and the event in a delivery."""
    frame: Any = json.loads(data)
    assert _VALIDATORS[subprotocol, sender].is_valid(frame), f"{frame.get('type')}: the schema does not accept it"
    if frame["type"] == "event.deliver":
        assert _EVENT.is_valid(frame["body"]["event"]), "the schema does not accept the event"

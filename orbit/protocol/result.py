"""A task's result on the wire: which JSON is one, and its one text.

The bounds belong to the protocol, as a batch's length does, and are no setting. A result nests less deep than a frame
may, because it travels inside frames: in a report, and later in an event inside a delivery. Sources: seeds
worker-contract ("Schema and runtime") and worker-sdk section 5.
"""

from __future__ import annotations

from typing import Final

import msgspec

from orbit.protocol import strict_json
from orbit.protocol.errors import InvalidJSON, InvalidValue
from orbit.protocol.limits import Limits
from orbit.protocol.strict_json import Value

RESULT_BYTES_MAX: Final = Limits().result_bytes
"""Bytes of a result's canonical text."""
RESULT_DEPTH_MAX: Final = Limits().content_depth
"""Levels of arrays and objects in a result."""
_RECEIVED_BYTES_MAX: Final = Limits().frame_bytes


def result_text(value: bytes | Value, path: str = "result") -> str:
    """Return the canonical text of a result given as a JSON document or as a parsed value.

    A document is `bytes`, or `msgspec.Raw` where a frame splices it. Numbers keep their text. Raises InvalidValue for
    null, for what is not strict JSON (half of a surrogate pair, a name twice, not UTF-8), for more than 28 levels and
    for more than 256 KiB. Numbers of any size pass: their bounds are the server's, see `check_numbers`.
    """
    try:
        if isinstance(value, bytes | msgspec.Raw):
            value = strict_json.parse(bytes(value), max_bytes=_RECEIVED_BYTES_MAX, max_depth=RESULT_DEPTH_MAX)
        elif strict_json.depth(value) > RESULT_DEPTH_MAX:
            raise InvalidValue(path, f"nests more than {RESULT_DEPTH_MAX} levels deep")
        text = strict_json.canonical(value)
    except InvalidJSON as error:
        failure = error.reason
    else:
        if value is None:
            raise InvalidValue(path, "must not be null; leave it out")
        if len(text) > RESULT_BYTES_MAX:
            raise InvalidValue(path, f"is larger than {RESULT_BYTES_MAX} bytes")
        return text.decode()
    raise InvalidValue(path, f"is not strict JSON: {failure}")


def check_numbers(text: str, limits: Limits, path: str = "body.result") -> None:
    """Check the numbers of a result, given as canonical text, against the server's bounds. Raises InvalidValue."""
    data = text.encode()
    strict_json.number_bounds(strict_json.parse(data, max_bytes=len(data)), limits, path)

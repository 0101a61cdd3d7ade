"""Frozen texts are spliced into frames as they stand in the database: look at them before they leave.

A text that somebody edited by hand can make a frame that no peer can read. It would end the connection, take its
neighbours with it, and come again with the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit.protocol import strict_json
from orbit.protocol.errors import InvalidJSON, InvalidValue
from orbit.server.offload import offload

if TYPE_CHECKING:
    from msgspec import Raw

    from orbit.protocol.limits import Limits


async def check_spliced(text: Raw, path: str, limits: Limits) -> None:
    """Raise InvalidValue unless the text can stand at `path` of a frame, such as `body.event`. Safe to cancel."""
    data = bytes(text)
    # The frame's object is around the first part of the path, and each part but the last is an object of its own.
    max_depth = limits.json_depth - len(path.split("."))
    fault = ""
    try:
        await offload(len(data), strict_json.parse, data, max_bytes=limits.frame_bytes, max_depth=max_depth)
    except InvalidJSON as error:
        fault = str(error)
    if fault:
        raise InvalidValue(path, fault)

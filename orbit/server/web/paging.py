"""The query parameters of lists: where a page begins, and how long it may be."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

from orbit.protocol.errors import InvalidValue
from orbit.protocol.values import parse_id
from orbit.server.web.endpoint import Query

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbit.server.web.endpoint import Call

T = TypeVar("T")

PAGE_DEFAULT: Final = 50
PAGE_MAX: Final = 200

_PLAIN: Final = re.compile(r"[1-9][0-9]{0,3}")


def _limit(text: str) -> int:
    if _PLAIN.fullmatch(text) is None or int(text) > PAGE_MAX:
        raise InvalidValue("limit", f"must be an integer from 1 to {PAGE_MAX}")
    return int(text)


def paging(pattern: str, parse: Callable[[str], Any]) -> tuple[Query, ...]:
    """The parameters of a list whose `next` is text of this pattern; `parse` raises InvalidValue."""
    return (
        Query(
            name="after",
            description="`next` of the page before; left out for the first page.",
            schema={"type": "string", "pattern": pattern},
            parse=parse,
        ),
        Query(
            name="limit",
            description="How many entries a page may have.",
            schema={"type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": PAGE_DEFAULT},
            parse=_limit,
        ),
    )


def place(call: Call, start: T) -> tuple[T, int]:
    """Where the page that was asked for begins, `start` for the first one, and how many entries it may have."""
    return call.query.get("after", start), call.query.get("limit", PAGE_DEFAULT)


PAGING: Final = paging("^[0-9a-f]{32}$", lambda text: parse_id(text, "after"))
"""For lists whose `next` is the id of their last entry."""

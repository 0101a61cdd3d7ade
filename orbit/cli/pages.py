"""Lists that come in pages: read to their end, or printed up to a number of entries."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Final, TypeVar

import msgspec
from msgspec import UNSET

from orbit.cli.run import say
from orbit.protocol.http_v1 import Page

PAGE: Final = 100
"""Entries asked for at a time."""

P = TypeVar("P", bound=Page)


async def every(read: Callable[[str | None], Awaitable[P]]) -> AsyncIterator[P]:
    """Read the pages of a list one after the other; `read` gets the place to go on after."""
    place: str | None = None
    while True:
        page = await read(place)
        yield page
        if page.next is UNSET:
            return
        place = page.next


async def print_list(
    read: Callable[[str | None, int], Awaitable[P]],
    entries: Callable[[P], Iterable[msgspec.Struct]],
    out: Callable[[msgspec.Struct], None],
    *,
    after: str | None,
    limit: int,
) -> None:
    """Print the first `limit` entries after a place, and tell where to go on."""
    place, left = after, limit
    while True:
        page = await read(place, min(left, PAGE))
        shown = list(entries(page))
        for one in shown:
            out(one)
        left -= len(shown)
        if page.next is UNSET:
            return
        place = page.next
        if left <= 0:
            say(f"there are more: --after {place}")
            return

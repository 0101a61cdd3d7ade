"""Keep the event loop free of large documents: 256 KiB of JSON take some 11 ms to read, and 32 KiB about one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LARGE_BYTES: Final = 32 * 1024


async def offload(size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a pure function on a document of `size` bytes: here if that is small, else on a thread.

    Cancelling is safe: the thread ends by itself and its result is dropped.
    """
    if size <= LARGE_BYTES:
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)

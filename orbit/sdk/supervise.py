"""Keeps a session with the platform alive: dials, waits, dials again.

The wait grows with every failure and starts over only when a session was welcomed and then lasted: a server that
accepts connections, or even sessions, and drops them at once is not hammered.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orbit.protocol.backoff import reconnect_delay
from orbit.sdk.errors import OrbitError

SETTLED_S: Final = 5.0
"""How long a welcomed session must have lasted for the next wait to be a short one."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Clock, sleep and dice of the dial loop; tests bring their own."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    jitter: Callable[[], float] = random.random


async def supervise(
    session: Callable[[Callable[[], None]], Awaitable[None]],
    *,
    timing: Timing,
    waiting: Callable[[OrbitError, float], None],
) -> None:
    """Run one session after the other until one returns.

    `session(welcomed)` dials, calls `welcomed()` when the server has taken the hello, and raises when the connection is
    gone. An OrbitError that is `temporary` is followed by a wait, announced by `waiting(error, seconds)`, and the next
    dial; everything else is raised to the caller. Cancelling is safe.
    """
    failures = 0
    while True:
        welcomed_at: float | None = None

        def welcomed() -> None:
            nonlocal welcomed_at
            welcomed_at = timing.clock()

        try:
            return await session(welcomed)
        except OrbitError as error:
            if not error.temporary:
                raise
            if welcomed_at is not None and timing.clock() - welcomed_at >= SETTLED_S:
                failures = 0
            delay = reconnect_delay(failures, timing.jitter())
            failures += 1
            waiting(error, delay)
        await timing.sleep(delay)


async def together(*parts: Coroutine[Any, Any, None]) -> None:
    """Run coroutines until all have ended or one has failed; then the others are cancelled and awaited.

    Raises the first failure itself, not a group. Cancelling cancels them all. It is not an `asyncio.TaskGroup`, which
    forgets that it was cancelled when a part fails at the same moment: a session that must end would dial again.
    """
    tasks = [asyncio.create_task(part, name="orbit-session") for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        await end(tasks)
    for task in tasks:
        failure = task.exception() if task in done and not task.cancelled() else None
        while isinstance(failure, BaseExceptionGroup):  # of a part that runs a group of its own
            failure = failure.exceptions[0]
        if failure is not None:
            raise failure


async def end(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel the tasks and wait for all of them, also when this is cancelled meanwhile; the cancellation comes after.

    What the tasks raise is for whoever asks them: nothing is raised here and nothing is logged as never retrieved.
    """
    for task in tasks:
        task.cancel()
    cancelled = False
    while running := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(running)
        except asyncio.CancelledError:
            cancelled = True
    for task in tasks:
        if not task.cancelled():
            task.exception()
    if cancelled:
        raise asyncio.CancelledError

"""Which task goes first, and which window a start falls into. Pure: the database's times in."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

PRIORITY_MAX: Final = 9
AGE_S: Final = 30
"""A task gains one priority for each of these that it has waited since it was due."""

_SECOND: Final = timedelta(seconds=1)
_FIRST_WINDOW: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - as the database gives times


def place(now: datetime, *, priority: int, available_at: datetime, task_id: str) -> tuple[int, datetime, str]:
    """Sort key of the order of dispatch: min(9, priority + waited_s // 30) falling, then due time, then id."""
    waited_s = (now - available_at) // _SECOND
    return -min(PRIORITY_MAX, priority + waited_s // AGE_S), available_at, task_id


def window_start(now: datetime, window_ms: int) -> datetime:
    """The beginning of the window that holds `now`: windows lie side by side from 1970 on."""
    return now - (now - _FIRST_WINDOW) % timedelta(milliseconds=window_ms)


def room_of(
    room: int, *, concurrency_limit: int | None, opened: int, start_limit: int | None, starts: int, unstarted: int
) -> int:
    """Bound how many tasks may be claimed by the queue's limits.

    `opened` counts the queue's attempts that have not ended, `unstarted` those of them that were leased in this window
    and have not started, `starts` the starts of this window. Claims that could not start in this window would wait for
    the next one on a lease that they may lose, and with it one of their attempts: so they are not made. Leases of
    earlier windows are not counted: their worker may be dead. The limit itself is kept at the start.
    """
    if concurrency_limit is not None:
        room = min(room, concurrency_limit - opened)
    if start_limit is not None:
        room = min(room, start_limit - starts - unstarted)
    return max(0, room)

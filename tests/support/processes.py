"""Waiting for processes and what they do: on a condition, with a deadline, never for a time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE_S = 30.0
_POLL_S = 0.02


def wait_until(condition: Callable[[], bool], what: str, *, deadline_s: float = DEADLINE_S) -> None:
    """Wait until the condition holds; AssertionError naming `what` when it never does."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {deadline_s:.0f} s for {what}"
        time.sleep(_POLL_S)


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and is not reaped yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in {"Z", "X"}


def wait_until_gone(pid: int) -> None:
    """Wait until the process has ended."""
    wait_until(lambda: not is_alive(pid), f"process {pid} to end")

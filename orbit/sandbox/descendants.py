"""Everything that a command started, its grandchildren too: found, ended and reaped, by process id.

A shell that is ended leaves its children running. As their subreaper (prctl(2), PR_SET_CHILD_SUBREAPER) this process
becomes their parent then, and can end them as well.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.02


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def end_strays(*, keep: Collection[int], grace_s: float) -> None:
    """End every child of this process but those in `keep`: SIGTERM, and SIGKILL after `grace_s` in all.

    Each is waited for. A child that ends may leave children of its own, which are then ours: the loop goes on until
    none is left.
    """
    deadline = time.monotonic() + grace_s
    asked: set[int] = set()
    while strays := _children(os.getpid()) - set(keep):
        late = time.monotonic() >= deadline
        for pid in strays:
            if late or pid not in asked:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
                asked.add(pid)
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(_POLL_S)


def _children(parent: int) -> set[int]:
    """The children of a process, zombies too, from /proc/PID/stat (proc(5): the parent is the fourth field)."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):  # it ended while we looked
                # The second field is the program's name in parentheses and may hold anything.
                after_name = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(after_name[1]) == parent:
                    found.add(int(folder.name))
    return found

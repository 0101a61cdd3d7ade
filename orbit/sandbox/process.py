"""Child processes that die with their parent and are ended by process id, never by name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING

from orbit.sandbox import tether

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STOP_DEADLINE_S = 20.0

# PR_SET_PDEATHSIG fires when the THREAD that forked ends (prctl(2)), not when its process does. Every child is
# therefore started from this one thread, which lives as long as the process.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sandbox-starter")


def spawn(
    command: Sequence[str | Path],
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
    stdin: int | None = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    own_session: bool = True,
    death_signal: signal.Signals = signal.SIGKILL,
) -> subprocess.Popen[bytes]:
    """Start a child that gets `death_signal` when this process dies, however it dies.

    `own_session` keeps the terminal's Ctrl-C away from it, so that the sandbox ends its children in order.
    SIGKILL is the default because it also ends a stopped child, and what the child holds is thrown away anyway.
    """
    program = [
        sys.executable, "-I", "-S", tether.__file__, str(os.getpid()), str(int(death_signal)), *map(str, command),
    ]  # fmt: skip
    return _starter.submit(
        subprocess.Popen,
        program,
        env=environ,
        cwd=folder,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=own_session,
    ).result()


def end(process: subprocess.Popen[bytes], *, deadline_s: float = STOP_DEADLINE_S) -> int:
    """End a child: SIGTERM, SIGKILL after the deadline, and wait; return its exit status."""
    if process.poll() is None:
        process.terminate()
        try:
            return process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()


def tail(path: Path, *, lines: int = 20) -> str:
    """The last lines of a log file, for an error message; empty when there is none."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])

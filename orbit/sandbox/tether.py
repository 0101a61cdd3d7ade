"""Run a program that dies with its parent: `python -I -S tether.py PARENT SIGNAL PROGRAM [ARGUMENT…]`.

A killed test run must leave no mysqld behind, and a killed process cannot clean up; only the kernel can, by
PR_SET_PDEATHSIG (prctl(2)). This small program asks for it and then becomes PROGRAM, so the process id stays. It is
no `preexec_fn` because Python code between fork and exec may deadlock when the parent has threads. It imports
nothing but the standard library, and runs as a file, so that it starts in some milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel for SIGNAL on the parent's death, then become PROGRAM."""
    parent, death_signal, *command = sys.argv[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # Python ignores these two, and an ignored signal stays ignored over exec (execve(2)).
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    # The parent may have died before prctl: then nothing will ever come.
    if os.getppid() != int(parent):
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - the command is the sandbox's own
    except OSError as error:
        # What a shell says, and its exit codes (POSIX, 2.8.2).
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    main()

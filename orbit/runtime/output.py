"""What a program prints is data for whoever runs it: it is written whole, or the program says that it was not."""

from __future__ import annotations

import os
import sys
from contextlib import suppress


class OutputFailed(Exception):
    """stdout did not take what was to be printed; says why. What the program did before is done all the same."""


def write_lines(*lines: str) -> None:
    """Write lines to stdout and flush them. Raises OutputFailed; nothing is written after that."""
    # Python has no stdout where the process was started without one.
    if sys.stdout is None:
        raise OutputFailed("standard output is closed")
    reason = ""
    try:
        for line in lines:
            sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        _give_up_stdout()
    if reason:
        raise OutputFailed(f"standard output cannot be written: {reason}")


def _give_up_stdout() -> None:
    """Let what is still in its buffer go nowhere: Python would fail at it again when it ends, in words of its own.

    The way of Python's documentation, "Note on SIGPIPE" of the module signal.
    """
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)

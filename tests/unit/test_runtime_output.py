"""What a program prints gets out whole, or the program learns why not; tried with streams as the system gives them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orbit.runtime.output import write_lines

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from orbit.runtime.output import OutputFailed, write_lines
try:
    write_lines("one", "two" * int(sys.argv[1]))
except OutputFailed as error:
    print(error, file=sys.stderr)
    sys.exit(3)
"""


# A short line fails at the flush and stays in the buffer, a long one fails as it is written.
SIZES = pytest.mark.parametrize("size", [1, 100_000])


def run(stdout: int, *, size: int = 1, redirection: str = "") -> tuple[int, str]:
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$@" {redirection}', sys.executable, PROGRAM, str(size)],
        cwd=ROOT,
        # Without PYTHONUNBUFFERED, which would leave nothing in a buffer.
        env={"PATH": os.environ["PATH"]},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


def test_lines_are_written_and_flushed(capsys: pytest.CaptureFixture[str]) -> None:
    write_lines("a=1", "b=2")
    assert capsys.readouterr().out == "a=1\nb=2\n"


@SIZES
def test_a_full_device_is_said_once_and_python_adds_nothing(size: int) -> None:
    with Path("/dev/full").open("w") as full:
        assert run(full.fileno(), size=size) == (3, "standard output cannot be written: No space left on device\n")


@SIZES
def test_a_reader_that_is_gone_is_said_once_and_python_adds_nothing(size: int) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        assert run(write, size=size) == (3, "standard output cannot be written: Broken pipe\n")
    finally:
        os.close(write)


def test_a_closed_stdout_is_said() -> None:
    assert run(subprocess.DEVNULL, redirection=">&-") == (3, "standard output is closed\n")

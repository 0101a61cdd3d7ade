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
    write_lines("one", "x" * 100_000)
except OutputFailed as error:
    print(error, file=sys.stderr)
    sys.exit(3)
"""


def run(stdout: int, *, before: str = "") -> tuple[int, str]:
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" {before}', sys.executable, PROGRAM],
        cwd=ROOT,
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


def test_a_full_device_is_said_once_and_python_adds_nothing() -> None:
    with Path("/dev/full").open("w") as full:
        assert run(full.fileno()) == (3, "standard output cannot be written: No space left on device\n")


def test_a_reader_that_is_gone_is_said_once_and_python_adds_nothing() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        assert run(write) == (3, "standard output cannot be written: Broken pipe\n")
    finally:
        os.close(write)


def test_a_closed_stdout_is_said() -> None:
    assert run(subprocess.DEVNULL, before=">&-") == (3, "standard output is closed\n")

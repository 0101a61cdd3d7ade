"""Runs of the sandbox's commands as processes, with folders of their own, and everything that they start is watched."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orbit.sandbox.cache import cache_root
from tests.support.mysql import WITHOUT_DOCKER
from tests.support.processes import DEADLINE_S, is_alive

if TYPE_CHECKING:
    from collections.abc import Iterator

MARK = "ORBIT_TEST_MARK"
CHECKOUT = Path(__file__).parents[2]
ORBIT_SANDBOX = (sys.executable, "-c", "from orbit.sandbox.cli import main; main()")


class Runs:
    """Runs of orbit-sandbox with a home, a temporary folder and a run folder of their own, all watched.

    Every process of a run inherits a mark in its environment, by which it is found whatever became of its parent.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = secrets.token_hex(8)
        self.started: list[subprocess.Popen[bytes]] = []
        for name in ("home", "tmp", "here", "cache"):
            (folder / name).mkdir()
        # The programs and templates of this machine; the folders of running servers are the test's own.
        machine = cache_root(os.environ)
        for name in ("programs", "templates"):
            (machine / name).mkdir(parents=True, exist_ok=True)
            (folder / "cache" / name).symlink_to(machine / name)
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ORBIT_")},
            "HOME": str(folder / "home"),
            "TMPDIR": str(folder / "tmp"),
            "ORBIT_SANDBOX_CACHE": str(folder / "cache"),
            "PYTHONPATH": str(CHECKOUT),
            **WITHOUT_DOCKER,
            MARK: self.mark,
        }

    def start(self, *command: str, terminal: int | None = None) -> subprocess.Popen[bytes]:
        """Start `orbit-sandbox run` in a session of its own, on the terminal if one is given."""
        return self.launch(*ORBIT_SANDBOX, "run", *(("--", *command) if command else ()), terminal=terminal)

    def launch(self, *program: str, terminal: int | None = None) -> subprocess.Popen[bytes]:
        """Start a program in a session of its own, on the terminal if one is given."""
        # setsid(1) becomes the command when it leads no process group, so the process id stays.
        session = () if terminal is None else ("setsid", "--ctty")
        with (self.folder / "stderr").open("wb") as stderr:
            process = subprocess.Popen(
                [*session, *program],
                env=self.environ,
                cwd=self.folder / "here",
                stdin=subprocess.DEVNULL if terminal is None else terminal,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=terminal is None,
            )
        self.started.append(process)
        return process

    def stderr(self) -> str:
        return (self.folder / "stderr").read_text()

    def processes(self) -> set[int]:
        """The live processes that carry the mark."""
        found = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    marked = f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes().split(b"\0")
                    if marked and is_alive(int(entry.name)):
                        found.add(int(entry.name))
        return found

    def files(self) -> set[str]:
        """Everything in the home, the temporary folder, the current folder and the folder of running servers."""
        return {
            str(path.relative_to(self.folder))
            for name in ("home", "tmp", "here", "cache/runs")
            for path in (self.folder / name).rglob("*")
        }

    def nothing_is_left(self) -> None:
        assert self.processes() == set()
        assert self.files() == set()


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    all_runs = Runs(tmp_path)
    yield all_runs
    for process in all_runs.started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    for pid in all_runs.processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def line(process: subprocess.Popen[bytes]) -> str:
    """The next line of its stdout; empty at its end."""
    assert process.stdout is not None
    return process.stdout.readline().decode().rstrip("\n")


def rest(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Wait for its end: exit code and what was left on stdout."""
    assert process.stdout is not None
    text = process.stdout.read().decode()
    return process.wait(DEADLINE_S), text

"""One platform node of one's own: `orbit serve` as a process, and `orbit-admin` to prepare its database."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orbit
from orbit.sandbox.errors import SandboxError
from orbit.sandbox.process import end, spawn, tail

if TYPE_CHECKING:
    from collections.abc import Mapping

ADMIN_DEADLINE_S: Final = 120.0
SERVE_DEADLINE_S: Final = 60.0
_POLL_S: Final = 0.05
_LISTENING: Final = re.compile(r"^orbit_listening=(\S+)$", re.MULTILINE)

# The commands are run by module and from the folder that holds the package, so that it does not matter whether the
# scripts are on PATH or what else lies in the current folder.
HOME: Final = Path(next(iter(orbit.__path__))).parent
_SERVE: Final = (sys.executable, "-c", "from orbit.server.cli import serve; serve()")
_ADMIN: Final = (sys.executable, "-c", "from orbit.server.admin import main; main()")


def administer(arguments: list[str], environ: Mapping[str, str]) -> None:
    """Run `orbit-admin`; SandboxError with what it said when it fails."""
    try:
        answer = subprocess.run(  # noqa: S603 - our own command
            [*_ADMIN, *arguments],
            env=environ,
            cwd=HOME,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ADMIN_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SandboxError(f"orbit-admin {arguments[0]} did not end in {ADMIN_DEADLINE_S:.0f} s") from error
    if answer.returncode != 0:
        raise SandboxError(f"orbit-admin {arguments[0]} ended with {answer.returncode}:\n{answer.stderr}")


class Node:
    """A serving node on a free port of 127.0.0.1. Raises SandboxError when it does not come up."""

    def __init__(self, environ: Mapping[str, str], folder: Path, *, log_to_stderr: bool) -> None:
        self._log = folder / "serve.log"
        output_file = folder / "serve.out"
        with output_file.open("wb") as output, self._log.open("wb") as log:
            self._process = spawn(
                [*_SERVE, "--listen", "127.0.0.1:0"],
                environ=environ,
                folder=HOME,
                stdout=output,
                stderr=None if log_to_stderr else log,
            )
        try:
            self.url = self._wait_until_listening(output_file)
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def log(self) -> str:
        """The end of its log; empty when it goes to stderr."""
        return tail(self._log)

    def failure(self) -> str | None:
        """Why it has ended by itself, with the end of its log; None while it serves."""
        status = self._process.poll()
        return None if status is None else f"orbit serve ended with {status}\n{self.log}"

    def stop(self) -> None:
        """End it (SIGTERM; SIGKILL after a deadline); does nothing the second time."""
        end(self._process)

    def _wait_until_listening(self, output: Path) -> str:
        deadline = time.monotonic() + SERVE_DEADLINE_S
        while True:
            found = _LISTENING.search(output.read_text())
            if found is not None:
                return found.group(1)
            failure = self.failure()
            if failure is not None:
                raise SandboxError(failure)
            if time.monotonic() > deadline:
                raise SandboxError(f"orbit serve did not listen in {SERVE_DEADLINE_S:.0f} s\n{self.log}")
            time.sleep(_POLL_S)

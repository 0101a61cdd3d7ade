"""A whole Orbit of one's own: MySQL, a migrated and bootstrapped platform, one serving node."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orbit
from orbit.sandbox.cache import Cache, cache_root
from orbit.sandbox.errors import SandboxError
from orbit.sandbox.obtain import mysql_server
from orbit.sandbox.process import end, spawn, tail
from orbit.sandbox.server import PLATFORM_PRIVILEGES, RECEIVER_INIT_PRIVILEGES, RECEIVER_RUN_PRIVILEGES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Self

    from orbit.mysql.dsn import DSN

NAME: Final = "sandbox"
"""Application, namespace, environment and queue are all called this."""
ADMIN_DEADLINE_S: Final = 120.0
SERVE_DEADLINE_S: Final = 60.0
_POLL_S: Final = 0.05
_LISTENING: Final = re.compile(r"^orbit_listening=(\S+)$", re.MULTILINE)

# The commands are run by module and from the folder that holds the package, so that it does not matter whether the
# scripts are on PATH or what else lies in the current folder.
_HOME: Final = Path(next(iter(orbit.__path__))).parent
_SERVE: Final = (sys.executable, "-c", "from orbit.server.cli import main; main()")
_ADMIN: Final = (sys.executable, "-c", "from orbit.server.admin import main; main()")


class Sandbox:
    """Two databases, two accounts, a platform and its node; leaving the context leaves nothing behind.

    Synchronous. Raises SandboxError when something does not start.
    """

    def __init__(
        self,
        environ: Mapping[str, str] = os.environ,
        *,
        on_progress: Callable[[str], None] = lambda _: None,
        log_to_stderr: bool = False,
    ) -> None:
        self._environ = environ
        self._on_progress = on_progress
        self._log_to_stderr = log_to_stderr
        self._exit = ExitStack()
        self._node: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            # Left last: what it holds is needed until everything else has ended.
            run = Cache(cache_root(self._environ)).new_run()
            stack.callback(run.remove)
            self._folder = run.path
            self.server = stack.enter_context(mysql_server(self._environ, on_progress=self._on_progress))

            platform = self.server.create_database("platform")
            self.platform_dsn = self.server.create_account(platform, PLATFORM_PRIVILEGES)
            receiver = self.server.create_database("receiver")
            self.receiver_dsn: DSN = self.server.create_account(
                receiver, (*RECEIVER_INIT_PRIVILEGES, *RECEIVER_RUN_PRIVILEGES)
            )

            self.credentials_file = self._folder / "credentials.json"
            self._administer("migrate")
            names = [f"--{name}={NAME}" for name in ("application", "namespace", "environment", "queue")]
            self._administer(
                "bootstrap", *names, "--worker-access", "--event-access", f"--output={self.credentials_file}"
            )
            self._node = self._serve()
            stack.callback(end, self._node)
            self.url = self._wait_until_listening(self._node)
            self._on_progress(f"Orbit at {self.url}")
            self._exit = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit.close()

    def exports(self) -> dict[str, str]:
        """The variables that a receiver, a worker or a producer needs. They hold the sandbox's password."""
        return {
            "ORBIT_URL": self.url,
            "ORBIT_CREDENTIALS_FILE": str(self.credentials_file),
            "ORBIT_RECEIVER_DSN": self.receiver_dsn.render(),
        }

    def pids(self) -> set[int]:
        """The processes that this sandbox runs."""
        node = None if self._node is None else self._node.pid
        return {pid for pid in (node, self.server.pid) if pid is not None}

    def node_failure(self) -> str | None:
        """Why the node has ended, with the end of its log; None while it serves."""
        if self._node is None or self._node.poll() is None:
            return None
        return f"orbit serve ended with {self._node.returncode}\n{tail(self._log)}"

    @property
    def _output(self) -> Path:
        return self._folder / "serve.out"

    @property
    def _log(self) -> Path:
        return self._folder / "serve.log"

    def node_log(self) -> str:
        """The end of the node's log; empty when it goes to stderr."""
        return tail(self._log)

    def _platform_environ(self) -> dict[str, str]:
        return {**self._environ, "ORBIT_MYSQL_DSN": self.platform_dsn.render()}

    def _administer(self, *arguments: str) -> None:
        answer = subprocess.run(  # noqa: S603 - our own command
            [*_ADMIN, *arguments],
            env=self._platform_environ(),
            cwd=_HOME,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ADMIN_DEADLINE_S,
            check=False,
        )
        if answer.returncode != 0:
            raise SandboxError(f"orbit-admin {arguments[0]} ended with {answer.returncode}:\n{answer.stderr}")

    def _serve(self) -> subprocess.Popen[bytes]:
        with self._output.open("wb") as output, self._log.open("wb") as log:
            return spawn(
                [*_SERVE, "serve", "--listen", "127.0.0.1:0"],
                environ=self._platform_environ(),
                folder=_HOME,
                stdout=output,
                stderr=None if self._log_to_stderr else log,
            )

    def _wait_until_listening(self, node: subprocess.Popen[bytes]) -> str:
        deadline = time.monotonic() + SERVE_DEADLINE_S
        while True:
            found = _LISTENING.search(self._output.read_text())
            if found is not None:
                return found.group(1)
            failure = self.node_failure()
            if failure is not None:
                raise SandboxError(failure)
            if time.monotonic() > deadline:
                raise SandboxError(f"orbit serve did not listen in {SERVE_DEADLINE_S:.0f} s\n{tail(self._log)}")
            time.sleep(_POLL_S)

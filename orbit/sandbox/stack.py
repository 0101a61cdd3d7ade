"""A whole Orbit of one's own: MySQL, a migrated and bootstrapped platform, one serving node."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orbit.sandbox.cache import Cache, cache_root
from orbit.sandbox.node import Node, administer
from orbit.sandbox.obtain import mysql_server
from orbit.sandbox.server import PLATFORM_PRIVILEGES, RECEIVER_INIT_PRIVILEGES, RECEIVER_RUN_PRIVILEGES, MySQLServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from orbit.mysql.dsn import DSN

NAME: Final = "sandbox"
"""Application, namespace, environment and queue are all called this."""

ACCESS: Final = ("--worker-access", "--event-access", "--queue-access", "--task-access")
"""The sandbox's one credential may do everything."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What runs, and where its accounts and credentials are."""

    server: MySQLServer
    node: Node
    platform_dsn: DSN
    receiver_dsn: DSN
    credentials_file: Path

    def exports(self) -> dict[str, str]:
        """The variables that a receiver, a worker or a producer needs. They hold the sandbox's password."""
        return {
            "ORBIT_URL": self.node.url,
            "ORBIT_CREDENTIALS_FILE": str(self.credentials_file),
            "ORBIT_RECEIVER_DSN": self.receiver_dsn.render(),
        }

    def pids(self) -> set[int]:
        """The processes that belong to the sandbox itself."""
        return {pid for pid in (self.node.pid, self.server.pid) if pid is not None}


@contextmanager
def open_sandbox(
    environ: Mapping[str, str] = os.environ,
    *,
    on_progress: Callable[[str], None] = lambda _: None,
    log_to_stderr: bool = False,
) -> Iterator[Sandbox]:
    """Start two databases, two accounts, a platform and its node; leaving the context leaves nothing behind.

    Synchronous. Raises SandboxError when something does not start.
    """
    with ExitStack() as stack:
        # Made first and so removed last: what it holds is needed until everything else has ended.
        run = Cache(cache_root(environ)).new_run()
        stack.callback(run.remove)
        server = stack.enter_context(mysql_server(environ, on_progress=on_progress))
        platform_dsn = server.create_account(server.create_database("platform"), PLATFORM_PRIVILEGES)
        receiver_dsn = server.create_account(
            server.create_database("receiver"), (*RECEIVER_INIT_PRIVILEGES, *RECEIVER_RUN_PRIVILEGES)
        )

        platform_environ = {**environ, "ORBIT_MYSQL_DSN": platform_dsn.render()}
        credentials_file = run.path / "credentials.json"
        names = [f"--{name}={NAME}" for name in ("application", "namespace", "environment", "queue")]
        administer(["migrate"], platform_environ)
        administer(
            ["bootstrap", *names, *ACCESS, f"--output={credentials_file}"],
            platform_environ,
        )
        node = Node(platform_environ, run.path, log_to_stderr=log_to_stderr)
        stack.callback(node.stop)
        on_progress(f"Orbit at {node.url}")
        yield Sandbox(server, node, platform_dsn, receiver_dsn, credentials_file)

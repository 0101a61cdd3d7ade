"""Way 2: MySQL in a container of a Docker engine that answers, by testcontainers.

Only this module imports testcontainers and docker, and only when the way is looked at.
"""

from __future__ import annotations

import secrets
import socket
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pymysql

from orbit.mysql.dsn import DSN
from orbit.sandbox.errors import SandboxError
from orbit.sandbox.mysqld import SETTINGS
from orbit.sandbox.ports import free_port
from orbit.sandbox.process import STOP_DEADLINE_S
from orbit.sandbox.server import read_version

if TYPE_CHECKING:
    from collections.abc import Mapping

IMAGE = "mysql:8.4"
ENGINE_TIMEOUT_S = 5
START_DEADLINE_S = 180.0
_POLL_S = 0.1
_PORT = "3306/tcp"
_DEFAULT_ADDRESS = "unix:///var/run/docker.sock"


def engine_version(environ: Mapping[str, str]) -> str:
    """The version of the Docker engine; SandboxError when none answers."""
    # Imported here: slow, and part of the sandbox extra only. docker has no type hints.
    try:
        import docker  # type: ignore[import-untyped]  # noqa: PLC0415
        from docker.errors import DockerException  # type: ignore[import-untyped]  # noqa: PLC0415
        from testcontainers.core.docker_client import get_docker_host  # noqa: PLC0415
    except ImportError as error:
        raise SandboxError("testcontainers (the sandbox extra) is not installed") from error
    address = environ.get("DOCKER_HOST") or get_docker_host() or _DEFAULT_ADDRESS
    try:
        _dial(address)
        client = docker.from_env(
            timeout=ENGINE_TIMEOUT_S,
            use_ssh_client=address.startswith("ssh://"),
            environment={**environ, "DOCKER_HOST": address},
        )
        with closing(client):
            return str(client.version()["Version"])
    except (DockerException, OSError) as error:
        raise SandboxError("no Docker engine answers") from error


def _dial(address: str) -> None:
    """Try a unix socket by hand first: docker's client leaves its socket open when nothing answers."""
    if address.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(ENGINE_TIMEOUT_S)
            probe.connect(address.removeprefix("unix://"))


def publish_address(host: str) -> str:
    """Where the engine publishes the port: loopback for an engine on this machine, else all its addresses."""
    return "127.0.0.1" if host in {"localhost", "127.0.0.1"} else "0.0.0.0"  # noqa: S104 - a remote engine


class MySQLContainer:
    """One MySQL container on a port that stays the same over restarts. Synchronous."""

    def __init__(self, image: str = IMAGE) -> None:
        from testcontainers.core.container import DockerContainer  # noqa: PLC0415 - slow

        self._password = secrets.token_urlsafe(18)
        self._container = DockerContainer(image, env={"MYSQL_ROOT_PASSWORD": self._password})
        # The image's entry point takes a command that starts with a dash as options of mysqld.
        self._container.with_command(list(SETTINGS))
        self._host = self._container.get_docker_client().host()
        self._port = free_port()
        # A fixed port: one that the engine picks changes when the container is started again.
        published: dict[str, Any] = self._container.ports
        published[_PORT] = (publish_address(self._host), self._port)
        try:
            self._container.start()
            self._wait_until_ready()
        except BaseException as error:
            self.close()
            if isinstance(error, SandboxError) or not isinstance(error, Exception):
                raise
            # testcontainers and docker raise dozens of types; whatever it is, this way does not work here.
            raise SandboxError(f"the engine cannot run {image} ({type(error).__name__}: {str(error)[:200]})") from error

    @property
    def pid(self) -> int | None:
        """The server's process id as this machine sees it, or None when it does not run."""
        state = self._wrapped().attrs["State"]
        return int(state["Pid"]) or None

    @property
    def admin(self) -> DSN:
        """root, with a password of this run."""
        return DSN(((self._host, self._port),), "root", self._password, None)

    def start(self) -> None:
        """Start the stopped server again, on the same port and data, and wait until it answers."""
        self._wrapped().start()
        self._wait_until_ready()

    def stop(self, *, deadline_s: float = STOP_DEADLINE_S) -> None:
        """Shut the server down (SIGTERM); SIGKILL after the deadline."""
        self._wrapped().stop(timeout=int(deadline_s))

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        container = self._wrapped()
        if container.attrs["State"]["Paused"]:
            container.unpause()  # a frozen process cannot even die
        if container.attrs["State"]["Running"]:
            container.kill()
            container.wait()

    def pause(self) -> None:
        """Freeze the server: sockets stay open and nothing answers."""
        self._wrapped().pause()

    def resume(self) -> None:
        """Thaw the server after `pause()`."""
        self._wrapped().unpause()

    def close(self) -> None:
        """Remove the container with its data; does nothing the second time."""
        self._container.stop()

    def _wrapped(self) -> Any:
        container: Any = self._container.get_wrapped_container()
        container.reload()
        return container

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_DEADLINE_S
        while True:
            try:
                # The image's entry point first runs a server without a network to make the account.
                read_version(self.admin)
            except pymysql.MySQLError:
                container = self._wrapped()
                if not container.attrs["State"]["Running"]:
                    raise SandboxError(f"the container ended instead of starting:\n{_tail(container)}") from None
                if time.monotonic() > deadline:
                    raise SandboxError(
                        f"the container did not answer in {START_DEADLINE_S:.0f} s:\n{_tail(container)}"
                    ) from None
                time.sleep(_POLL_S)
            else:
                return


def _tail(container: Any) -> str:
    return str(container.logs(tail=20).decode(errors="replace"))

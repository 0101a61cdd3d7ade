"""A Docker engine for tests: the machine's own if one answers, else one started by hand where that is possible.

The hand-started engine cannot pull an image on every machine, so it is given one made of Debian's mysqld. It keeps the
contract of `mysql:8.4` that the sandbox relies on: MYSQL_ROOT_PASSWORD, options as the command, port 3306, and data
that stays over a restart.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import tarfile
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from orbit.sandbox import debian
from orbit.sandbox.cache import Cache, cache_root
from orbit.sandbox.container import IMAGE, engine_version
from orbit.sandbox.errors import SandboxError
from orbit.sandbox.process import end, spawn, tail
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_PARTS = ("usr/sbin/mysqld", "usr/lib", "usr/lib64", "usr/share/mysql")
_BRIDGE = Path("/sys/class/net/docker0")
_ENTRY = """\
set -e
options="--no-defaults --user=root --datadir=/var/lib/mysql --mysqlx=OFF --secure-file-priv=NULL --port=3306"
options="$options --socket=mysql.sock --pid-file=mysqld.pid"
if [ ! -d /var/lib/mysql/mysql ]; then
  echo "CREATE USER root@'%' IDENTIFIED BY '$MYSQL_ROOT_PASSWORD';" > /first.sql
  echo "GRANT ALL ON *.* TO root@'%' WITH GRANT OPTION;" >> /first.sql
  /usr/sbin/mysqld $options --initialize-insecure --init-file=/first.sql
fi
exec /usr/sbin/mysqld $options "$@"
"""


class NoEngine(Exception):
    """There is no Docker engine here and none can be started; says why."""


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine and the variables by which a process finds it."""

    environ: dict[str, str]
    own: bool

    def containers(self) -> list[Any]:
        """Every container of this engine, ended ones too."""
        answer: list[Any] = json.loads(_request(self.environ["DOCKER_HOST"], "GET", "/containers/json?all=1"))
        return answer


@contextmanager
def docker_engine() -> Iterator[Engine]:
    """The machine's engine, or one of our own for as long as the context lasts; NoEngine when there is neither."""
    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    try:
        engine_version(os.environ)
    except SandboxError:
        pass
    else:
        yield Engine({"DOCKER_HOST": address}, own=False)
        return
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        missing = "dockerd is not installed" if os.geteuid() == 0 else "only root can start one"
        raise NoEngine(f"no Docker engine answers, and {missing}")
    # Short: the engine's sockets lie in it, and a socket's path has 107 bytes at most.
    folder = Path(tempfile.mkdtemp(prefix="orbit-docker-"))
    try:
        with _own_engine(folder) as address:
            _import_image(address)
            # Its containers' ports are on this machine, also when the tests themselves run in a container. Ryuk, which
            # removes what a killed test run leaves, is an image of its own that cannot be pulled.
            yield Engine(
                {
                    "DOCKER_HOST": address,
                    "TESTCONTAINERS_HOST_OVERRIDE": "127.0.0.1",
                    "TESTCONTAINERS_RYUK_DISABLED": "true",
                },
                own=True,
            )
    finally:
        shutil.rmtree(folder)


@contextmanager
def _own_engine(folder: Path) -> Iterator[str]:
    bridge_was_there = _BRIDGE.exists()
    address = f"unix://{folder}/docker.sock"
    log = folder / "log"
    with log.open("wb") as output:
        process = spawn(
            [
                "dockerd", f"--host={address}", f"--data-root={folder}/data", f"--exec-root={folder}/exec",
                f"--pidfile={folder}/pid", "--storage-driver=vfs", "--iptables=false", "--ip6tables=false",
            ],
            stdout=output,
            stderr=output,
        )  # fmt: skip
    try:

        def is_up() -> bool:
            if process.poll() is not None:
                # As in a container without the privileges that an engine needs.
                raise NoEngine(f"no Docker engine answers, and dockerd does not start here: {tail(log, lines=1)}")
            try:
                return _request(address, "GET", "/_ping") == b"OK"
            except OSError:
                return False

        wait_until(is_up, "dockerd to answer")
        yield address
    finally:
        end(process)
        if not bridge_was_there and _BRIDGE.exists():
            subprocess.run(["ip", "link", "delete", _BRIDGE.name], check=True)


def _import_image(address: str) -> None:
    root = debian.fetch(Cache(cache_root(os.environ)), os.environ, print)
    with tempfile.TemporaryFile() as image:
        with tarfile.open(fileobj=image, mode="w") as tar:
            for part in _PARTS:
                if (root / part).exists():
                    tar.add(root / part, part)
            tar.add(Path("/bin/sh").resolve(), "usr/bin/sh")
            for name, target in (("bin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")):
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, target
                tar.addfile(link)
            for name in ("tmp", "var", "var/lib"):
                folder = tarfile.TarInfo(name)
                folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
                tar.addfile(folder)
            _add_text(tar, "etc/passwd", "root:x:0:0::/:/bin/sh\n")
            _add_text(tar, "entry.sh", _ENTRY)
        image.seek(0)
        repository, tag = IMAGE.split(":")
        changes = "changes=ENTRYPOINT%20%5B%22/bin/sh%22,%22/entry.sh%22%5D&changes=EXPOSE%203306"
        said = _request(address, "POST", f"/images/create?fromSrc=-&repo={repository}&tag={tag}&{changes}", image)
    assert b"sha256:" in said, said


def _add_text(tar: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode()
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    tar.addfile(entry, BytesIO(data))


def _request(address: str, method: str, path: str, body: Any = None) -> bytes:
    """One request of the engine's API over its unix socket (Docker Engine API v1.41)."""
    connection = http.client.HTTPConnection("docker", timeout=120)
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(address.removeprefix("unix://"))
        connection.sock = link
        headers = {"Content-Type": "application/x-tar"} if body is not None else {}
        connection.request(method, f"/v1.41{path}", body, headers, encode_chunked=body is not None)
        response = connection.getresponse()
        data = response.read()
        assert response.status == 200, (response.status, data)
        return data

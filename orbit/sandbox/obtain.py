"""Get a real MySQL server in the first way that works, and say which it was (design section 3)."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from orbit.mysql.dsn import DSN, InvalidDSN
from orbit.sandbox import container, debian, mysqld
from orbit.sandbox.cache import Cache, cache_root
from orbit.sandbox.errors import NoMySQL, SandboxError
from orbit.sandbox.server import MySQLServer, connect_existing, read_version
from orbit.sandbox.ways import DSN_VARIABLE, Finding, Way, plan, report

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from orbit.sandbox.server import Control


def mysql_server(
    environ: Mapping[str, str] = os.environ,
    *,
    on_progress: Callable[[str], None] = lambda _: None,
    own: bool = False,
) -> MySQLServer:
    """Get a server, to be used as a context manager.

    With `own` it is one that the sandbox starts itself, so that it can be killed, paused and restarted: the server
    in the environment is then no choice. Raises NoMySQL, naming each way and what it said, when no way works.
    """
    obtain = _Obtain(environ, on_progress)
    chosen = plan(obtain.findings(own=own))
    said = dict(chosen.refused)
    for way in chosen.candidates:
        try:
            server = obtain.by(way)
        except SandboxError as error:
            said[way] = str(error)
            on_progress(f"{way.value} does not work: {error}")
        else:
            on_progress(f"MySQL: {server.way}")
            return server
    raise NoMySQL(report(said))


class _Obtain:
    """The looks at the machine and the steps of each way."""

    def __init__(self, environ: Mapping[str, str], on_progress: Callable[[str], None]) -> None:
        self._environ = environ
        self._on_progress = on_progress
        self._cache = Cache(cache_root(environ))

    def findings(self, *, own: bool) -> dict[Way, Finding]:
        """Look at each way; starts and downloads nothing."""
        if own:
            looks = {}
        elif self._environ.get(DSN_VARIABLE):
            # Nothing else is tried then, so nothing else is looked at.
            return {Way.ENVIRONMENT: Finding(usable=True, says=f"{DSN_VARIABLE} is set")}
        else:
            looks = {Way.ENVIRONMENT: Finding(usable=False, says=f"{DSN_VARIABLE} is not set")}
        looks[Way.DOCKER] = _look(lambda: f"Docker engine {container.engine_version(self._environ)}")
        looks[Way.PATH] = _look(lambda: self._path_program().version.text)
        looks[Way.DEBIAN] = self._look_at_apt()
        return looks

    def by(self, way: Way) -> MySQLServer:
        """Start a server this way; SandboxError when it does not work."""
        match way:
            case Way.ENVIRONMENT:
                try:
                    dsn = DSN.parse(self._environ[DSN_VARIABLE], source=DSN_VARIABLE, require_database=False)
                except InvalidDSN as error:
                    raise SandboxError(str(error)) from error
                return connect_existing(dsn, way=way.value)
            case Way.DOCKER:
                self._on_progress(f"starting {container.IMAGE} in a container")
                return _started(way, container.MySQLContainer())
            case Way.PATH:
                return _started(way, mysqld.MysqldProcess(self._path_program(), self._cache))
            case Way.DEBIAN:
                return _started(way, mysqld.MysqldProcess(self._debian_program(), self._cache))

    def _path_program(self) -> mysqld.MysqldProgram:
        found = shutil.which("mysqld", path=self._environ.get("PATH", os.defpath))
        if found is None:
            raise SandboxError("there is none")
        return mysqld.identify((found,))

    def _look_at_apt(self) -> Finding:
        if self._cache.kept(debian.FOLDER) is not None:
            return Finding(usable=True, says="downloaded before")
        obstacle = debian.read_facts(self._environ).obstacle()
        return Finding(usable=obstacle is None, says=obstacle or "apt can be asked")

    def _debian_program(self) -> mysqld.MysqldProgram:
        command, options = debian.program(debian.fetch(self._cache, self._environ, self._on_progress))
        return mysqld.identify(command, options)


def _look(at: Callable[[], str]) -> Finding:
    try:
        return Finding(usable=True, says=at())
    except SandboxError as error:
        return Finding(usable=False, says=str(error))


def _started(way: Way, control: Control) -> MySQLServer:
    version = read_version(control.admin).text
    host, port = control.admin.hosts[0]
    return MySQLServer(
        way=f"{way.value}: MySQL {version} at {host}:{port}", admin=control.admin, version=version, control=control
    )

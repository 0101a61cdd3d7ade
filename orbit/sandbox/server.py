"""A running MySQL server, whichever way it was had: its databases and its accounts.

Process-starting code is synchronous, so administration is plain PyMySQL: short connections, autocommit, every
wait bounded.
"""

from __future__ import annotations

import re
import secrets
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import pymysql

from orbit.mysql.connect import ssl_context
from orbit.sandbox.errors import SandboxError
from orbit.sandbox.versions import ServerVersion, parse_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType
    from typing import Self

    from orbit.mysql.dsn import DSN

CONNECT_TIMEOUT_S = 10
STATEMENT_TIMEOUT_S = 60
LOCK_WAIT_TIMEOUT_S = 20

# What the two sides need in their own database. The platform migrates its schema with the account it serves with;
# the receiver needs CREATE for `receiver init` and the other three at run time (design section 4).
PLATFORM_PRIVILEGES = ("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "ALTER", "INDEX")
RECEIVER_INIT_PRIVILEGES = ("CREATE",)
RECEIVER_RUN_PRIVILEGES = ("SELECT", "INSERT", "UPDATE")

# No underscore: in GRANT it is a wildcard, and whether a backslash escapes it depends on partial_revokes.
_PREFIX = re.compile(r"[a-z][a-z0-9]{0,31}")
_PRIVILEGE = re.compile(r"[A-Z]+( [A-Z]+)*")


@contextmanager
def admin_cursor(dsn: DSN) -> Iterator[pymysql.cursors.Cursor]:
    """Open a short autocommit connection; connect and each statement are bounded, metadata locks too."""
    host, port = dsn.hosts[0]
    connection = pymysql.connect(
        host=host,
        port=port,
        user=dsn.user,
        password=dsn.password,
        database=dsn.database,
        charset="utf8mb4",
        autocommit=True,
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=STATEMENT_TIMEOUT_S,
        write_timeout=STATEMENT_TIMEOUT_S,
        ssl=ssl_context(dsn.ssl),
        init_command=f"SET SESSION lock_wait_timeout = {LOCK_WAIT_TIMEOUT_S}",
    )
    with connection, connection.cursor() as cursor:
        yield cursor


def read_version(dsn: DSN) -> ServerVersion:
    """Ask a server who it is; pymysql.MySQLError when it does not answer."""
    with admin_cursor(dsn) as cursor:
        cursor.execute("SELECT VERSION()")
        row = cursor.fetchone()
    return parse_version(str(row[0]) if row else "")


@dataclass(frozen=True, slots=True)
class Database:
    """One database of the sandbox and the administrator's DSN for it."""

    name: str
    admin: DSN


class Control(Protocol):
    """The hand on a server that the sandbox started itself, for fault tests. Synchronous."""

    @property
    def pid(self) -> int | None:
        """The server's process id, or None when it does not run."""

    @property
    def admin(self) -> DSN:
        """The administrator's account."""

    def start(self) -> None:
        """Start it again after `stop` or `kill`, on the same port and data, and wait until it answers."""

    def stop(self, *, deadline_s: float = ...) -> None:
        """Shut it down (SIGTERM); SIGKILL after the deadline."""

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""

    def pause(self) -> None:
        """Freeze it: sockets stay open and nothing answers."""

    def resume(self) -> None:
        """Let it go on after `pause`."""

    def close(self) -> None:
        """End it for good and remove its data; does nothing the second time."""


@dataclass(slots=True)
class MySQLServer:
    """A real MySQL server; leaving the context drops what was made through this object.

    `way` is the sentence that says where the server came from. `control` is there when the sandbox started the server
    itself: it kills, pauses and restarts it for fault tests.
    """

    way: str
    admin: DSN
    version: str
    control: Control | None = None
    _accounts: dict[str, list[str]] = field(default_factory=dict, repr=False)

    @property
    def pid(self) -> int | None:
        """The server's process id when the sandbox started it and it runs."""
        return None if self.control is None else self.control.pid

    def create_database(self, prefix: str) -> Database:
        """Create an empty database; its name is unique, so that many sessions can share one server."""
        if _PREFIX.fullmatch(prefix) is None:
            raise ValueError(f"database prefix {prefix!r} must be 1 to 32 of a-z and 0-9, a letter first")
        name = prefix + secrets.token_hex(6)
        with admin_cursor(self.admin) as cursor:
            cursor.execute(f"CREATE DATABASE `{name}`")
        self._accounts[name] = []
        return Database(name, self.admin.with_database(name))

    def create_account(self, database: Database, privileges: Sequence[str]) -> DSN:
        """Create an account with exactly these privileges on this database and nothing else."""
        for privilege in privileges:
            if _PRIVILEGE.fullmatch(privilege) is None:
                raise ValueError(f"{privilege!r} is no privilege")
        user, password = "u" + secrets.token_hex(8), secrets.token_urlsafe(18)
        with admin_cursor(self.admin) as cursor:
            # PyMySQL substitutes on the client: both values are quoted as SQL strings.
            cursor.execute("CREATE USER %s@'%%' IDENTIFIED BY %s", (user, password))
            self._accounts[database.name].append(user)
            cursor.execute(f"GRANT {', '.join(privileges)} ON `{database.name}`.* TO %s@'%%'", (user,))
        return database.admin.with_account(user, password)

    def drop_database(self, database: Database) -> None:
        """Drop a database made here, and its accounts; does nothing the second time."""
        self._drop(database.name)

    def close(self) -> None:
        """Drop what was made here, or end the process that the sandbox started, with everything in it."""
        if self.control is not None:
            self.control.close()
            self._accounts.clear()
            return
        for name in list(self._accounts):
            self._drop(name)

    def _drop(self, name: str) -> None:
        users = self._accounts.get(name)
        if users is None:
            return
        with admin_cursor(self.admin) as cursor:
            for user in users:
                cursor.execute("DROP USER IF EXISTS %s@'%%'", (user,))
            # A failed test may have left a transaction open; DROP DATABASE would wait for its metadata locks.
            cursor.execute("SELECT id FROM performance_schema.processlist WHERE db = %s", (name,))
            for (connection_id,) in cursor.fetchall():
                with suppress(pymysql.OperationalError):  # it ended by itself meanwhile
                    cursor.execute("KILL CONNECTION %s", (connection_id,))
            cursor.execute(f"DROP DATABASE IF EXISTS `{name}`")
        del self._accounts[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect_existing(dsn: DSN, *, way: str) -> MySQLServer:
    """Use a server that already runs; SandboxError when it does not answer or is not MySQL 8.4 or newer."""
    host, port = dsn.hosts[0]
    try:
        version = read_version(dsn)
    except (pymysql.MySQLError, OSError, ValueError) as error:
        number = f" {error.args[0]}" if error.args and isinstance(error.args[0], int) else ""
        raise SandboxError(f"the server at {host}:{port} does not answer ({type(error).__name__}{number})") from error
    refusal = version.refusal()
    if refusal is not None:
        raise SandboxError(f"the server at {host}:{port} cannot be used: {refusal}")
    return MySQLServer(way=f"{way}: MySQL {version.text} at {host}:{port}", admin=dsn, version=version.text)

"""Open a connection that a lane can trust: in time, on a server that takes writes, in a session of known settings."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import TYPE_CHECKING, Final

from orbit.mysql.driver import Connection, Refused, errno_of
from orbit.mysql.dsn import DSN, SSLMode, SSLOptions
from orbit.mysql.errors import BUDGET_SPENT, Kind, NotCommitted, Stage, classify

if TYPE_CHECKING:
    from orbit.mysql.times import LaneTimes

SQL_MODE: Final = (
    "ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_ENGINE_SUBSTITUTION,NO_BACKSLASH_ESCAPES"
)
"""The default of MySQL 8.4, which is strict, and NO_BACKSLASH_ESCAPES: writing an event of 512 KiB into a statement
takes 0.7 ms of the event loop instead of 28. Set whole, so that no server's own mode (ANSI_QUOTES, a mode without
strictness) changes what our statements mean."""

_FACTS: Final = b"SELECT @@GLOBAL.read_only, @@GLOBAL.super_read_only"


def session_settings(times: LaneTimes) -> bytes:
    """Give the one SET statement that every connection starts with.

    autocommit=0 lets the first statement open the transaction without a round trip. completion_type makes COMMIT mean
    COMMIT alone. The collation is that of literals among themselves; columns have their own.
    """
    settings = {
        "autocommit": "0",
        "transaction_isolation": "'READ-COMMITTED'",
        "completion_type": "'NO_CHAIN'",
        "sql_mode": f"'{SQL_MODE}'",
        "time_zone": "'+00:00'",
        "collation_connection": "'utf8mb4_0900_bin'",
        "wait_timeout": str(times.wait_timeout_s),
        "innodb_lock_wait_timeout": str(times.row_lock_s),
        "lock_wait_timeout": str(times.metadata_lock_s),
    }
    return ("SET " + ", ".join(f"SESSION {name} = {value}" for name, value in settings.items())).encode()


def ssl_context(options: SSLOptions) -> ssl.SSLContext | None:
    """Build the TLS context of a DSN; reads the CA file. Raises OSError (ssl.SSLError is one) if it is unusable."""
    if options.mode is SSLMode.DISABLED:
        return None
    context = ssl.create_default_context(cafile=options.ca)
    # Python's own default, which Debian's build leaves to the system's configuration.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if options.mode is not SSLMode.VERIFY_IDENTITY:
        context.check_hostname = False
        # The certificates that MySQL makes itself have no key identifiers; Python insists on them from 3.13 on.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if options.mode is SSLMode.REQUIRED:
        context.verify_mode = ssl.CERT_NONE
    return context


class Dialer:
    """Opens connections to the first host of a DSN that answers and takes writes.

    With one host nobody asks whether it is read-only: there is no other to go to, and reading may be all that is
    wanted. The host that served last is tried first.
    """

    def __init__(self, dsn: DSN, times: LaneTimes, *, name: str) -> None:
        self._dsn = dsn
        self._times = times
        self._name = name
        self._first = 0

    @property
    def patience_s(self) -> float:
        """How long `dial` may take when nothing else bounds it."""
        return self._times.connect_s * len(self._dsn.hosts)

    async def dial(self, deadline: float) -> Connection:
        """Open one connection before `deadline` (loop time).

        Raises NotCommitted at stage OPENING; with several hosts, of the first failure that may pass. Safe to cancel.
        """
        loop = asyncio.get_running_loop()
        count = len(self._dsn.hosts)
        failures: list[NotCommitted] = []
        for turn in range(count):
            position = (self._first + turn) % count
            # No host may use up the time of those after it.
            limit = min(self._times.connect_s, (deadline - loop.time()) / (count - turn))
            try:
                connection = await self._dial(self._dsn.hosts[position], limit)
            except NotCommitted as failure:
                failures.append(failure)
            else:
                self._first = position
                return connection
        raise next((failure for failure in failures if failure.kind.passes), failures[0])

    async def _dial(self, address: tuple[str, int], limit_s: float) -> Connection:
        host, port = address
        if limit_s <= 0:
            raise NotCommitted(None, Kind.RETRY, Stage.OPENING, BUDGET_SPENT)
        try:
            context = ssl_context(self._dsn.ssl)
        except OSError:
            context = None
            unusable = True
        else:
            unusable = False
        if unusable:
            raise NotCommitted(None, Kind.CONFIGURATION, Stage.OPENING, "the file of ssl_ca is not usable")
        connection = Connection(
            host=host,
            port=port,
            user=self._dsn.user,
            password=self._dsn.password,
            db=self._dsn.database,
            charset="utf8mb4",
            autocommit=None,
            ssl=context,
            program_name=self._name,
        )
        error: BaseException | None = None
        try:
            async with asyncio.timeout(limit_s):
                await connection.open()
                connection.watch_link(self._times.unacknowledged_s)
                await self._settle(connection)
        except BaseException as caught:  # noqa: BLE001 - raised again below, outside, so that it is nobody's context
            error = caught
        if error is None:
            return connection
        connection.drop()
        if not isinstance(error, Exception):
            raise error
        raise explain(error)

    async def _settle(self, connection: Connection) -> None:
        await connection.send(session_settings(self._times))
        if not connection.doubles_quotes:
            raise Refused("the session did not take NO_BACKSLASH_ESCAPES")
        if len(self._dsn.hosts) == 1:
            return
        result = await connection.send(_FACTS)
        if result.rows != ((0, 0),):
            raise _ReadOnly


class _ReadOnly(Exception):
    """The server answers but takes no writes."""


_BY_TYPE: Final[tuple[tuple[type[Exception], Kind | None, str], ...]] = (
    (_ReadOnly, Kind.RECONNECT, "the server is read-only"),
    (TimeoutError, None, "no answer in time"),
    # The driver's way of saying that `cryptography`, its extra `rsa`, is missing.
    (RuntimeError, Kind.CONFIGURATION, "the driver cannot log in"),
)
_BY_CAUSE: Final[tuple[tuple[type[Exception], Kind | None, str], ...]] = (
    (ssl.SSLCertVerificationError, Kind.CONFIGURATION, "the server's certificate is not trusted"),
    (ssl.SSLError, None, "the TLS handshake failed"),
    (socket.gaierror, None, "the host name is unknown"),
    (ConnectionRefusedError, None, "connection refused"),
    (TimeoutError, None, "no answer in time"),
)


def explain(error: Exception) -> NotCommitted:
    """Say what a failure to connect means; pure. Where a row names no kind, the error number decides."""
    if isinstance(error, Refused):
        return NotCommitted(None, Kind.CONFIGURATION, Stage.OPENING, str(error))
    errno = errno_of(error)
    rows = [row for row in _BY_TYPE if isinstance(error, row[0])]
    rows += [row for row in _BY_CAUSE if isinstance(error.__cause__, row[0])]
    _, kind, reason = rows[0] if rows else (Exception, None, "")
    return NotCommitted(errno, kind or classify(Stage.OPENING, errno), Stage.OPENING, reason)

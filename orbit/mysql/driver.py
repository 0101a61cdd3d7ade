"""The one place that knows the insides of aiomysql (0.3.2; a test fails when they change).

What is wanted and not public: the status flags of the last packet (aiomysql ignores those that end a result set), the
end of the stream before anything is sent, the socket, and dropping a connection without flushing it. What is switched
off: several statements in one text, SHOW WARNINGS after each statement with a warning, going on in plain text when
TLS was asked for and the server does not offer it.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any, Final, Protocol, cast

import aiomysql
from aiomysql.connection import EOFPacketWrapper, MySQLResult
from pymysql.constants import CLIENT, SERVER_STATUS
from pymysql.err import Error

_QUIT: Final = b"\x01\x00\x00\x00\x01"
"""COM_QUIT: length 1, sequence 0, command 1. The server answers by closing."""
_KEEPALIVE_IDLE_S: Final = 5
_KEEPALIVE_INTERVAL_S: Final = 2
_KEEPALIVE_PROBES: Final = 3


class Refused(Exception):
    """The server is not one to log in to; the reason is a fixed phrase."""


class Result(Protocol):
    """What a statement brought back; `rows` is None when it returns none by nature."""

    rows: tuple[tuple[Any, ...], ...] | None
    affected_rows: int
    insert_id: int
    has_next: bool


class _Result(MySQLResult):  # type: ignore[misc]  # - aiomysql ships no types
    def _check_packet_is_eof(self, packet: Any) -> bool:
        if not packet.is_eof_packet():
            return False
        end = EOFPacketWrapper(packet)
        self.warning_count = end.warning_count
        self.has_next = end.has_next
        self.server_status = end.server_status
        return True


class Connection(aiomysql.Connection):  # type: ignore[misc]  # - aiomysql ships no types
    """One connection. It never reconnects; after a failure of the link it stays closed."""

    _writer: asyncio.StreamWriter | None
    _reader: Any

    def __init__(self, **options: Any) -> None:
        # FOUND_ROWS as SQLAlchemy has it: an UPDATE counts the rows that matched.
        super().__init__(client_flag=CLIENT.FOUND_ROWS, **options)
        # One text, one statement: nothing can hide a COMMIT behind a semicolon.
        self.client_flag &= ~CLIENT.MULTI_STATEMENTS

    async def open(self) -> None:
        """Connect and log in. No deadline of its own. Safe to cancel; call `drop` after any failure."""
        await self._connect()

    async def send(self, sql: bytes) -> Result:
        """Send one statement and read its whole answer. A cancellation closes the connection."""
        await self.query(sql)
        return cast("Result", self._result)

    @property
    def connection_id(self) -> int:
        """Give the server's thread id, as KILL and the process list know it."""
        return int(self.thread_id())

    @property
    def in_transaction(self) -> bool:
        """Read SERVER_STATUS_IN_TRANS of the last OK or EOF packet; an ERR packet carries no flags."""
        return bool(self.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)

    @property
    def doubles_quotes(self) -> bool:
        """Tell whether the session is in NO_BACKSLASH_ESCAPES, the only mode that `literals` writes for."""
        return bool(self.server_status & SERVER_STATUS.SERVER_STATUS_NO_BACKSLASH_ESCAPES)

    @property
    def lost(self) -> bool:
        """Tell whether the link is known to be gone, without sending anything."""
        return self._writer is None or self._writer.transport.is_closing() or self._reader.eof_received

    def drop(self) -> None:
        """Close at once; what the transport still holds is thrown away."""
        self.close()

    async def leave(self, limit_s: float) -> None:
        """Say COM_QUIT and close; drops the connection where that takes longer than `limit_s` seconds.

        Safe to cancel: the connection is closed in any case.
        """
        writer = self._writer
        if writer is None:
            return
        self._writer = self._reader = None
        writer.write(_QUIT)
        writer.close()
        try:
            async with asyncio.timeout(limit_s):
                await writer.wait_closed()
        except (OSError, TimeoutError):
            pass
        finally:
            writer.transport.abort()

    def close(self) -> None:
        # The driver's close() would flush first, and a COMMIT in that buffer would arrive late.
        if self._writer is not None:
            self._writer.transport.abort()
        super().close()

    def watch_link(self, unacknowledged_s: float) -> None:
        """Let the kernel notice a dead peer in seconds (tcp(7)); the defaults are hours."""
        assert self._writer is not None
        link = self._writer.transport.get_extra_info("socket")
        if sys.platform == "linux":
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(unacknowledged_s * 1000))
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL_S)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)

    async def _read_query_result(self, unbuffered: bool = False) -> None:
        self._result = None
        result = _Result(self)
        await result.read()
        self._result = result
        self._affected_rows = result.affected_rows
        if result.server_status is not None:
            self.server_status = result.server_status

    async def _get_server_information(self) -> None:
        await super()._get_server_information()
        if "mariadb" in self.server_version.lower():
            raise Refused("the server is MariaDB, not MySQL")

    async def _request_authentication(self) -> None:
        if self._ssl_context is not None and not self.server_capabilities & CLIENT.SSL:
            raise Refused("the server offers no TLS")
        await super()._request_authentication()


def errno_of(error: BaseException) -> int | None:
    """Give the error number of a driver's exception; None where it carries none, as with many of aiomysql's."""
    if isinstance(error, Error) and error.args and isinstance(error.args[0], int):
        return error.args[0]
    return None

"""One WebSocket to the platform. The only module that imports websockets.

Text frames only, no compression, no proxy, no redirects; every time and size is bounded. It moves bytes and knows no
message: `conversation` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from typing import Final, Self

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from orbit.protocol.limits import Limits
from orbit.protocol.values import Secret
from orbit.sdk.errors import Disconnected, OrbitError, ProtocolMismatch, TransportError, http_error
from orbit.sdk.http import USER_AGENT

CLOSE_S: Final = 1.0
"""How long the closing handshake may take before the connection is cut."""

FRAMES_BUFFERED: Final = 4
"""Frames that are read ahead; with more the socket is not read, so a peer cannot fill the memory."""

WRITE_BUFFER_BYTES: Final = 64 * 1024
"""Above this a send waits for the socket."""

UNSUPPORTED_DATA: Final = 1003
"""RFC 6455 section 7.4.1: a kind of data that the end does not take."""

# At DEBUG the library logs every header and frame, hence the token and every proof. A logger outside the hierarchy
# cannot be turned up by any configuration.
_SILENT: Final = logging.Logger("orbit.sdk.silent", level=logging.CRITICAL + 1)  # noqa: LOG001 - see above


class _Connect(connect):
    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class Channel:
    """An open WebSocket. One task at a time may receive; any number may send."""

    def __init__(self, connection: ClientConnection, limits: Limits) -> None:
        self._connection = connection
        self._limits = limits

    @classmethod
    async def dial(
        cls, url: str, token: Secret, subprotocol: str, *, limits: Limits, tls: ssl.SSLContext | None
    ) -> Self:
        """Connect and upgrade within `limits.handshake_s`: name lookup, TCP, TLS and HTTP together.

        Raise HTTPError when the upgrade is refused, ProtocolMismatch when the server does not select `subprotocol` or
        does not speak WebSocket, TransportError when there is no connection. Cancelling leaves nothing open.
        """
        # The errors' frames hold the header, so ours is raised when theirs is gone.
        failure: OrbitError
        try:
            connection = await _Connect(
                url,
                subprotocols=[Subprotocol(subprotocol)],
                compression=None,
                additional_headers={"Authorization": f"Bearer {token.reveal()}"},
                user_agent_header=USER_AGENT,
                proxy=None,
                open_timeout=limits.handshake_s,
                # The conversation's own heartbeat notices a dead link sooner; the library answers pings by itself.
                ping_interval=None,
                close_timeout=CLOSE_S,
                max_size=limits.frame_bytes,
                max_queue=FRAMES_BUFFERED,
                write_limit=WRITE_BUFFER_BYTES,
                logger=_SILENT,
                ssl=tls,
            )
        except TimeoutError:
            failure = TransportError("no connection in time", outcome_unknown=False)
        except InvalidStatus as error:
            failure = http_error(error.response.status_code, bytes(error.response.body))
        except (OSError, InvalidMessage) as error:  # InvalidMessage: the connection ended before the answer did
            failure = TransportError(f"cannot connect ({type(error).__name__})", outcome_unknown=False)
        except WebSocketException as error:
            failure = ProtocolMismatch(f"the upgrade failed ({type(error).__name__})")
        else:
            if connection.subprotocol == subprotocol:
                return cls(connection, limits)
            await connection.close()
            failure = ProtocolMismatch("the server selected no subprotocol")
        raise failure

    async def send(self, data: bytes) -> None:
        """Send one text message of UTF-8 bytes; wait while more than the write buffer is unsent.

        Raise Disconnected, also after `limits.control_s` of waiting. Cancelling does not take the message back.
        """
        failure: Disconnected
        try:
            async with asyncio.timeout(self._limits.control_s):
                await self._connection.send(data, text=True)
        except TimeoutError:
            self.abort()
            failure = Disconnected("the other end does not read")
        except ConnectionClosed as error:
            failure = _closed(error)
        else:
            return
        raise failure

    async def receive(self) -> bytes:
        """Return the next text message. Cancelling is safe: no message is lost.

        Raise Disconnected when the connection has ended, when nothing came for `limits.read_idle_s` and, after closing
        with 1003, for a binary message. The library closes with 1007 and 1009 by itself.
        """
        failure: Disconnected
        try:
            async with asyncio.timeout(self._limits.read_idle_s):
                message = await self._connection.recv()
        except TimeoutError:
            self.abort()
            failure = Disconnected("nothing came for too long")
        except ConnectionClosed as error:
            failure = _closed(error)
        else:
            if isinstance(message, str):
                return message.encode()
            await self.close(UNSUPPORTED_DATA)
            failure = Disconnected("a binary message", UNSUPPORTED_DATA)
        raise failure

    async def close(self, code: int = 1000) -> None:
        """Close with `code`, cut after `CLOSE_S`; safe to repeat. Cancelling cuts at once."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._connection.close(code)
        except TimeoutError:
            pass
        finally:
            self.abort()

    def abort(self) -> None:
        """Cut the connection without a closing handshake; safe to repeat."""
        with contextlib.suppress(RuntimeError):  # uvloop, when the transport is closed already
            self._connection.transport.abort()


def _closed(error: ConnectionClosed) -> Disconnected:
    """Say who closed first and how; the other end's reason is its own text and stays out."""
    if error.sent is not None and not error.rcvd_then_sent:
        return Disconnected("closed by this end", error.sent.code)
    if error.rcvd is not None:
        return Disconnected("closed by the other end", error.rcvd.code)
    return Disconnected("the connection was lost")

"""Run an ASGI application under uvicorn in this process, with the stop of our own.

uvicorn would re-raise the signal that stopped it and so end with a signal's exit code; its handling is switched off,
and whoever embeds it says when to stop.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import uvicorn

if TYPE_CHECKING:
    from orbit.protocol.limits import Limits

GRACE_S: Final = 10
"""How long requests that are under way may take to end once the server stops."""


class _NoFrames(logging.Filter):
    """Drops the library's records below INFO, which hold every header and frame: tokens, proofs, payloads, results."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.INFO


# On the logger itself, so that no level, set before or after, lets them through.
_NO_FRAMES: Final = _NoFrames()
logging.getLogger("uvicorn.error").addFilter(_NO_FRAMES)


class Server(uvicorn.Server):
    """A uvicorn that leaves signals alone and tells its address when it listens."""

    def __init__(self, config: uvicorn.Config, listening: Callable[[str], None]) -> None:
        super().__init__(config)
        self._listening = listening

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start and tell the URL."""
        await super().startup(sockets=sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self._listening(f"http://{f'[{host}]' if ':' in host else host}:{port}")


def listener(host: str, port: int) -> socket.socket:
    """Bind a listening socket; port 0 takes a free one. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.create_server((host, port), family=family)
    # Accepted sockets inherit it. asyncio sets it only where the protocol is named, which create_server does not, and
    # uvicorn writes head and body apart: the body would wait for the client's delayed ACK, some 40 ms on Linux.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return bound


def server(app: Any, limits: Limits, listening: Callable[[str], None]) -> Server:
    """Build a server; `listening` gets its URL once it accepts connections.

    `await server.serve(sockets=[listener(…)])` runs it until `should_exit` is set; it then closes WebSockets with 1012,
    lets requests end for at most GRACE_S, and runs the application's end.
    """
    config = uvicorn.Config(
        app,
        loop="none",
        http="httptools",
        ws="websockets-sansio",
        ws_max_size=limits.frame_bytes,
        ws_per_message_deflate=False,
        ws_ping_interval=20,
        ws_ping_timeout=20,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )
    return Server(config, listening)

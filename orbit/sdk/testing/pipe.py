"""A connection in memory: the client's end is a `Channel`, the platform's a `Wire`."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from typing import Final

from orbit.sdk.changes import Changes
from orbit.sdk.channel import Channel
from orbit.sdk.errors import Disconnected

MESSAGES_MAX: Final = 64
"""Messages that wait in each direction; a sender waits for room, as it would for a socket."""


class Pipe:
    """Both directions of one connection; cut once, for both ends, and what was not read is lost."""

    def __init__(self) -> None:
        self._up: deque[bytes] = deque()
        self._down: deque[bytes] = deque()
        self._changes = Changes()
        self.over = False

    def channel(self) -> Channel:
        """The client's end."""
        return _PipeChannel(self)

    async def send_text(self, data: bytes | str) -> None:
        """Send one text message to the client; nothing happens when the connection is cut."""
        await self._put(self._down, data.encode() if isinstance(data, str) else data)

    def cut(self) -> None:
        """Cut the connection without a word."""
        self.over = True
        self._changes.notify()

    async def messages(self) -> AsyncIterator[bytes]:
        """The client's messages until the connection is cut."""
        while (message := await self._get(self._up)) is not None:
            yield message

    async def from_client(self, data: bytes) -> bool:
        """Take one message of the client's; false when the connection is cut."""
        return await self._put(self._up, data)

    async def to_client(self) -> bytes | None:
        """The next message for the client; None when the connection is cut."""
        return await self._get(self._down)

    async def _put(self, way: deque[bytes], data: bytes) -> bool:
        await self._changes.until(lambda: self.over or len(way) < MESSAGES_MAX)
        if self.over:
            return False
        way.append(data)
        self._changes.notify()
        return True

    async def _get(self, way: deque[bytes]) -> bytes | None:
        await self._changes.until(lambda: self.over or bool(way))
        if self.over:
            return None
        message = way.popleft()
        self._changes.notify()
        return message


class _PipeChannel(Channel):
    """What a conversation talks through; nothing of the WebSocket behind the other channels is there."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    async def send(self, data: bytes) -> None:
        if not await self._pipe.from_client(data):
            raise Disconnected("the connection was lost")

    async def receive(self) -> bytes:
        message = await self._pipe.to_client()
        if message is None:
            raise Disconnected("the connection was lost")
        return message

    async def close(self, code: int = 1000) -> None:
        self._pipe.cut()

    def abort(self) -> None:
        self._pipe.cut()

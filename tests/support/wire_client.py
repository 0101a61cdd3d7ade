"""A bare client of either subprotocol: the protocol's client session over a WebSocket, and nothing clever.

What it says by itself, and all that the platform says, is held against the published schema as it passes.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from orbit.protocol.session import ClientSession, Ended, Push, Refused, Reply, Welcomed
from orbit.protocol.values import new_id
from tests.support.published import check_frame

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orbit.protocol.vocabulary import Vocabulary

DEADLINE_S = 20.0


class Refusal(Exception):
    """The server refused a request or the hello; `code` is the public one."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Closed(Exception):
    """The connection ended before what was waited for."""


@asynccontextmanager
async def upgraded(base_url: str, path: str, token: str, subprotocol: str) -> AsyncIterator[ClientConnection]:
    """An upgraded connection that nothing was said on yet."""
    async with connect(
        base_url.replace("http://", "ws://") + path,
        subprotocols=[Subprotocol(subprotocol)],
        additional_headers={"Authorization": f"Bearer {token}"},
        compression=None,
        proxy=None,
        ping_interval=None,
        close_timeout=2,
    ) as connection:
        yield connection


class WireClient:
    """One connection. Requests wait for their answers; pushes go to `pushed`."""

    vocabulary: Vocabulary

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.session = ClientSession(self.vocabulary)
        self.answers: list[str] = []
        """Ids of requests in the order in which they were answered."""
        self.ended: Ended | None = None
        """The server's last word, where it had one."""
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._sequence = 0
        self._reading: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Take what the server sends while inside."""
        self._reading = asyncio.create_task(self._read(), name="wire-client")
        try:
            yield
        finally:
            self._reading.cancel()
            with suppress(asyncio.CancelledError):
                await self._reading

    def pushed(self, push: Push) -> None:
        """Take a push."""
        raise NotImplementedError

    async def hello(self, body: Any) -> Any:
        """Say hello and wait for the welcome's body; raises Refusal, Closed."""
        message_id = new_id()
        return await self._said(message_id, self.session.hello(body, message_id))

    async def request(self, name: str, body: Any, message_id: str | None = None) -> Any:
        """Send a request and wait for its answer's body; raises Refusal, Closed."""
        message_id = message_id or new_id()
        return await self._said(message_id, self.session.request(name, body, message_id))

    async def taken(self, queue: asyncio.Queue[Any]) -> Any:
        """The next of what was pushed; raises Closed, TimeoutError."""
        assert self._reading is not None
        getting = asyncio.ensure_future(queue.get())
        try:
            async with asyncio.timeout(DEADLINE_S):
                await asyncio.wait((getting, self._reading), return_when=asyncio.FIRST_COMPLETED)
            if not getting.done():
                raise Closed
            return getting.result()
        finally:
            getting.cancel()

    async def closed(self) -> int | None:
        """Wait until the server ended the connection; its close code."""
        assert self._reading is not None
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait((self._reading,))
        return self.connection.close_code

    async def _said(self, message_id: str, data: bytes) -> Any:
        check_frame(self.vocabulary.subprotocol, "client", data)
        return await self._ask(message_id, data)

    async def _ask(self, message_id: str, data: bytes) -> Any:
        answer = self._waiting[message_id] = asyncio.get_running_loop().create_future()
        try:
            await self.connection.send(data.decode())
        except ConnectionClosed:
            raise Closed from None
        async with asyncio.timeout(DEADLINE_S):
            return await answer

    async def _read(self) -> None:
        try:
            async for text in self.connection:
                assert isinstance(text, str)
                check_frame(self.vocabulary.subprotocol, "server", text)
                self._take(self.session.receive(text.encode()))
        except ConnectionClosed:
            pass
        finally:
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(Closed())

    def _take(self, event: Welcomed | Reply | Refused | Push | Ended) -> None:
        match event:
            case Push() as push:
                self.pushed(push)
            case Welcomed(body):
                (answer,) = self._waiting.values()
                self._waiting.clear()
                answer.set_result(body)
            case Reply(message_id, _, body):
                self.answers.append(message_id)
                self._waiting.pop(message_id).set_result(body)
            case Refused(message_id, _, code, _):
                self.answers.append(message_id)
                self._waiting.pop(message_id).set_exception(Refusal(code))
            case Ended(code, _) as ended:
                self.ended = ended
                for answer in self._waiting.values():
                    answer.set_exception(Refusal(code))
                self._waiting.clear()

"""The WebSocket relay: ordinary HTTP passes as it is, the messages of an upgraded connection are read."""

from __future__ import annotations

from typing import Literal

from toxiproxy.base import FaultProxy, Peer, released
from toxiproxy.faults import Armed, CutAtFrame, DropFrame, HoldFrame, Subject
from toxiproxy.journal import Point
from toxiproxy.link import Link
from toxiproxy.websocket import (
    Correspondence,
    HeadReader,
    Message,
    MessageReader,
    asks_for_websocket,
    header,
    status_of,
    without_extensions,
)


class FrameRelay(FaultProxy):
    """A fault proxy in front of an HTTP server with WebSockets. Plain text only: `http://` and `ws://`.

    Request heads pass unchanged (path, Authorization, subprotocol), but for the offer of extensions, which is removed:
    no message is compressed. One base URL serves both HTTP and WebSocket.
    """

    @property
    def url(self) -> str:
        """The base URL to give to a client in place of the upstream's."""
        return f"http://127.0.0.1:{self.port}"

    def drop(
        self,
        type: str,  # noqa: A002 - the member of the envelope has this name
        *,
        direction: Literal["server", "client"] = "server",
        nth: int = 1,
        answers: str | None = None,
    ) -> Armed:
        """Arm DropFrame."""
        return self.arm(DropFrame(type, direction, answers, nth=nth))

    async def serve(self, number: int, client: Peer) -> None:
        """Serve one client connection until both of its sides are over."""
        await _RelayLink(self, number, client).run()


class _RelayLink(Link):
    """One connection: HTTP as it is, or a WebSocket message by message."""

    def __init__(self, proxy: FaultProxy, number: int, client: Peer) -> None:
        super().__init__(proxy, number, client)
        self._upgrading = False
        self._open = False
        self._early = b""
        self._to_server = MessageReader(masked=True)
        self._to_client = MessageReader(masked=False)
        self._correspondence = Correspondence()

    def finish_server(self) -> None:
        """End the upstream side."""
        self.server.finish()

    async def from_client(self) -> None:
        head = HeadReader()
        seen = False
        while data := await self.client.read():
            if not self.passes():
                continue
            if seen:
                await self._client_bytes(data)
            elif found := head.feed(data):
                seen = True
                await self._request(*found)
        self.note(Point.CLIENT_CLOSED)
        if not self.is_dark():
            if not seen:
                await self.server.send(head.rest())
            self.server.finish()

    async def _request(self, head: bytes, rest: bytes) -> None:
        self._upgrading = asks_for_websocket(head)
        if self._upgrading:
            self.note(Point.UPGRADE, command=header(head, "Sec-WebSocket-Protocol") or None, size=len(head))
            head = without_extensions(head)
        else:
            self.note(Point.HTTP, command=head.split(b" ", 1)[0].decode("latin-1"), size=len(head))
        await self.server.send(head)
        if rest:
            await self._client_bytes(rest)

    async def _client_bytes(self, data: bytes) -> None:
        if self._open:
            await self._messages(self._to_server, data, Point.CLIENT_FRAME)
        elif self._upgrading:
            # Frames before the server's answer: they wait, so that they can be judged.
            self._early += data
        else:
            await self.server.send(data)

    async def from_server(self) -> None:
        head = HeadReader()
        while data := await self.server.read():
            if not self.passes():
                continue
            if self._open:
                await self._messages(self._to_client, data, Point.SERVER_FRAME)
            elif not self._upgrading:
                await self.client.send(data)
            elif found := head.feed(data):
                await self._response(*found)
        self.server_closed()

    async def _response(self, head: bytes, rest: bytes) -> None:
        await self.client.send(head)
        early, self._early = self._early, b""
        if status_of(head) == 101:
            self._open = True
            if early:
                await self._messages(self._to_server, early, Point.CLIENT_FRAME)
            if rest:
                await self._messages(self._to_client, rest, Point.SERVER_FRAME)
            return
        self._upgrading = False
        await self.server.send(early)
        await self.client.send(rest)

    async def _messages(self, reader: MessageReader, data: bytes, point: Point) -> None:
        for message in reader.feed(data):
            if self.passes():
                await self._pass(message, point)

    async def _pass(self, message: Message, point: Point) -> None:
        from_client = point is Point.CLIENT_FRAME
        answers = self._correspondence.note(message, from_client=from_client)
        armed = self.fire(
            Subject(point, frame_type=message.type, answers=answers),
            command=message.type,
            size=len(message.raw),
        )
        to = self.server if from_client else self.client
        match armed.fault if armed is not None else None:
            case DropFrame():
                self.settle()
            case CutAtFrame(when="before", end=end):
                self.cut(end)
            case CutAtFrame(end=end):
                await to.send(message.raw)
                self.cut(end)
            case HoldFrame(until=until):
                await released(until)
                delivered = self.passes() and await to.send(message.raw)
                self.note(Point.RELEASED if delivered else Point.UNDELIVERED, command=message.type)
                self.settle()
            case _:
                await to.send(message.raw)

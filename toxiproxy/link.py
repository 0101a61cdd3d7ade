"""One client connection of a fault proxy and its upstream: a task for each direction, and how either side ends."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from enum import Enum, auto
from typing import Final

from toxiproxy.base import FaultProxy, Peer, connect
from toxiproxy.faults import Armed, DarkLink, End, RefuseConnect, SilentConnect, Subject
from toxiproxy.journal import Entry, Point
from toxiproxy.packets import ProtocolViolation

_CONNECT_S: Final = 10.0


class Mode(Enum):
    """What still passes on a link."""

    RELAY = auto()
    GONE = auto()
    """The client's side is over. What the server still sends is read and goes nowhere."""
    DARK = auto()
    """Nothing is delivered and nothing is closed."""


class Link(ABC):
    """What every kind of connection does; a subclass reads the two directions and knows the protocol."""

    def __init__(self, proxy: FaultProxy, number: int, client: Peer) -> None:
        self.proxy = proxy
        self.number = number
        self.client = client
        self.server: Peer
        self.mode = Mode.RELAY
        self.thread_id: int | None = None
        self._effects: list[Armed] = []

    async def run(self) -> None:
        """Serve the connection until both sides are over. Cancelling it drops both, and what is held."""
        try:
            if await self._accept():
                await self._pump()
        finally:
            self.settle()

    @abstractmethod
    async def from_client(self) -> None:
        """Pass on what the client sends, until it sends no more."""

    @abstractmethod
    async def from_server(self) -> None:
        """Pass on what the server sends, until it sends no more."""

    @abstractmethod
    def finish_server(self) -> None:
        """End the upstream side as soon as nothing is due from it."""

    async def _accept(self) -> bool:
        """Whether the connection may go on; an upstream connection is then there."""
        armed = self.fire(Subject(Point.ACCEPTED))
        match armed.fault if armed is not None else None:
            case RefuseConnect():
                self.client.reset()
                return False
            case SilentConnect():
                self.mode = Mode.DARK
            case DarkLink():
                self.proxy.dark = True
        if self.is_dark():
            while await self.client.read():
                pass
            return False
        try:
            self.server = await connect(self.proxy.upstream, deadline=_CONNECT_S, slice_bytes=self.proxy.slice_bytes)
        except OSError:
            self.note(Point.UPSTREAM_REFUSED)
            self.client.reset()
            return False
        return True

    async def _pump(self) -> None:
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self.from_client())
                pumps.create_task(self.from_server())
        except* ProtocolViolation as violations:
            # It cannot be judged any further, so it must not go on; leaving the proxy's context raises.
            self.note(Point.UNRECOGNISED, command=str(violations.exceptions[0]))
            self.client.reset()
        finally:
            self.server.close()

    def cut(self, end: End) -> None:
        """End the connection in the given way; the effect is then over."""
        self.end_client(end)
        self.settle()

    def end_client(self, end: End) -> None:
        """End the client's side in the given way, and the upstream when nothing is due from it."""
        if end is End.SILENCE:
            self.mode = Mode.DARK
            return
        self.mode = Mode.GONE
        if end is End.RST:
            self.client.reset()
        else:
            self.client.finish()
        self.finish_server()

    def is_dark(self) -> bool:
        """Whether nothing passes; a connection that has met the darkness stays in it."""
        if self.proxy.dark:
            self.mode = Mode.DARK
        return self.mode is Mode.DARK

    def server_closed(self) -> None:
        """Note that the server sends no more, and end the client's side in the same way if it is still served."""
        self.note(Point.SERVER_CLOSED)
        if self.passes():
            self.mode = Mode.GONE
            if self.server.was_reset:
                self.client.reset()
            else:
                self.client.finish()

    def passes(self) -> bool:
        """Whether bytes are still to be delivered."""
        return not self.is_dark() and self.mode is Mode.RELAY

    def fire(
        self,
        subject: Subject,
        *,
        command: str | None = None,
        size: int = 0,
        errno: int | None = None,
        in_transaction: bool | None = None,
    ) -> Armed | None:
        """Write down that the subject was reached, and return the fault that fires there, if any."""
        armed = self.proxy.armory.pick(subject)
        entry = self.note(
            subject.point,
            command=command,
            fired=armed.fault.name if armed is not None else None,
            size=size,
            errno=errno,
            in_transaction=in_transaction,
        )
        if armed is not None:
            self._effects.append(armed)
            armed.mark_fired(entry)
        return armed

    def settle(self) -> None:
        """Say that the effects of the faults that fired here are over."""
        for armed in self._effects:
            armed.mark_finished()
        self._effects.clear()

    def note(
        self,
        point: Point,
        *,
        command: str | None = None,
        fired: str | None = None,
        size: int = 0,
        errno: int | None = None,
        in_transaction: bool | None = None,
    ) -> Entry:
        """Write a line of the journal."""
        return self.proxy.journal.write(
            self.number,
            point,
            thread_id=self.thread_id,
            command=command,
            fired=fired,
            size=size,
            errno=errno,
            in_transaction=in_transaction,
        )

"""One client connection of the MySQL proxy: moves packets, and carries out the fault that is picked at a point."""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from typing import Final

from toxiproxy.base import FaultProxy, Peer, connect, released
from toxiproxy.faults import (
    Armed,
    CutAfterCommit,
    CutAfterStatement,
    CutBeforeCommit,
    CutInHandshake,
    DarkLink,
    DelayCommitOk,
    DropCommitOk,
    End,
    HoldCommit,
    RefuseConnect,
    ReplaceCommitOk,
    SilentConnect,
    Subject,
)
from toxiproxy.journal import Entry, Point
from toxiproxy.packets import Packet, PacketReader, ProtocolViolation, error_packet
from toxiproxy.session import Command, Greeted, LoggedIn, MySQLSession, Refused, Reply, Unsolicited

_CONNECT_S: Final = 10.0
_SSL_CONNECTION_ERROR: Final = 2026


class _Mode(Enum):
    RELAY = auto()
    GONE = auto()
    """The client's side is over; MySQL's is read to the end of the running answer, then closed."""
    DARK = auto()
    """Nothing is delivered and nothing is closed."""


class MySQLConnection:
    """One client connection and its upstream: a task for each direction."""

    def __init__(self, proxy: FaultProxy, number: int, client: Peer, session: MySQLSession) -> None:
        self._proxy = proxy
        self._number = number
        self._client = client
        self._server: Peer
        self._session = session
        self._mode = _Mode.RELAY
        self._out = bytearray()
        self._finish_when_idle = False
        self._effects: list[Armed] = []

    async def run(self) -> None:
        """Serve the connection until both sides are over. Cancelling it drops both, and what is held."""
        try:
            if await self._accept():
                await self._pump()
        finally:
            self._settle()

    async def _accept(self) -> bool:
        """Whether the connection may go on to MySQL; an upstream connection is then there."""
        armed = self._fire(Subject(Point.ACCEPTED))
        match armed.fault if armed is not None else None:
            case RefuseConnect():
                self._client.reset()
                return False
            case SilentConnect():
                self._mode = _Mode.DARK
            case DarkLink():
                self._proxy.dark = True
        if self._is_dark():
            while await self._client.read():
                pass
            return False
        try:
            self._server = await connect(self._proxy.upstream, deadline=_CONNECT_S, slice_bytes=self._proxy.slice_bytes)
        except OSError:
            self._note(Point.UPSTREAM_REFUSED)
            self._client.reset()
            return False
        return True

    async def _pump(self) -> None:
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._from_client())
                pumps.create_task(self._from_server())
        except* ProtocolViolation as violations:
            # It cannot be judged any further, so it must not go on; leaving the proxy's context raises.
            self._note(Point.UNRECOGNISED, command=str(violations.exceptions[0]))
            self._client.reset()
        finally:
            self._server.close()

    # From the client.

    async def _from_client(self) -> None:
        packets = PacketReader()
        while data := await self._client.read():
            if self._is_dark() or self._mode is _Mode.GONE:
                continue
            for packet in packets.feed(data):
                if self._mode is _Mode.RELAY:
                    await self._take_from_client(packet)
        self._note(Point.CLIENT_CLOSED)
        if not self._is_dark():
            # Only its sending side is known to be over: an answer that is still due is delivered.
            self._finish_server()

    async def _take_from_client(self, packet: Packet) -> None:
        match self._session.from_client(packet):
            case None:
                await self._server.send(packet.raw)
            case Refused(wanted):
                await self._refuse(packet, wanted)
            case Command() as command:
                await self._take_command(packet, command)

    async def _refuse(self, packet: Packet, wanted: str) -> None:
        self._note(Point.REFUSED, command=wanted)
        message = f"toxiproxy reads this connection and speaks plain text only; the client asked for {wanted}"
        await self._client.send(error_packet(_SSL_CONNECTION_ERROR, "08S01", message, packet.sequence + 1))
        self._cut(End.FIN)

    async def _take_command(self, packet: Packet, command: Command) -> None:
        armed = self._fire(
            Subject(Point.COMMIT if command.is_commit else Point.COMMAND),
            command=command.name,
            size=len(packet.raw),
            in_transaction=command.in_transaction,
        )
        match armed.fault if armed is not None else None:
            case CutBeforeCommit(end=end):
                self._session.not_forwarded()
                self._cut(end)
            case HoldCommit(until=until):
                await released(until)
                delivered = await self._server.send(packet.raw)
                self._note(Point.RELEASED if delivered else Point.UNDELIVERED, command=command.name)
            case CutAfterCommit(end=end):
                await self._server.send(packet.raw)
                self._end_client(end)
            case _:
                await self._server.send(packet.raw)

    # From MySQL.

    async def _from_server(self) -> None:
        packets = PacketReader()
        while data := await self._server.read():
            for packet in packets.feed(data):
                await self._take_from_server(packet)
            await self._flush()
            if self._finish_when_idle and self._session.idle:
                self._server.finish()
        self._note(Point.SERVER_CLOSED)
        if self._mode is _Mode.RELAY and not self._is_dark():
            self._mode = _Mode.GONE
            if self._server.was_reset:
                self._client.reset()
            else:
                self._client.finish()

    async def _take_from_server(self, packet: Packet) -> None:
        match self._session.from_server(packet):
            case None:
                self._out += packet.raw
            case Greeted(greeting):
                await self._pass_or_cut(Point.GREETING, greeting.raw, command="plain text only")
            case LoggedIn(errno):
                await self._pass_or_cut(Point.LOGIN, packet.raw, errno=errno)
            case Unsolicited(errno):
                self._note(Point.UNSOLICITED, errno=errno, size=len(packet.raw))
                self._out += packet.raw
            case Reply() as reply:
                await self._take_reply(packet, reply)

    async def _pass_or_cut(
        self, point: Point, raw: bytes, *, command: str | None = None, errno: int | None = None
    ) -> None:
        armed = self._fire(Subject(point), command=command, errno=errno, size=len(raw))
        if armed is not None and isinstance(armed.fault, CutInHandshake):
            self._cut(armed.fault.end)
        else:
            self._out += raw

    async def _take_reply(self, packet: Packet, reply: Reply) -> None:
        command = reply.command
        if reply.unrecognised:
            self._note(Point.UNRECOGNISED, command=command.name)
        if not command.is_commit:
            await self._pass_reply(packet, reply)
            return
        if reply.errno is None:
            armed = self._fire(Subject(Point.COMMIT_OK), command=command.name, size=len(packet.raw))
            await self._answer_commit(packet, armed)
        else:
            self._note(Point.ERROR, command=command.name, errno=reply.errno, size=len(packet.raw))
            self._out += packet.raw
        self._settle()

    async def _answer_commit(self, packet: Packet, armed: Armed | None) -> None:
        match armed.fault if armed is not None else None:
            case DropCommitOk(end=end, keep_bytes=keep):
                self._out += packet.raw[:keep]
                await self._flush()
                self._end_client(end)
            case DelayCommitOk(until=until):
                await self._flush()
                await released(until)
                delivered = self._mode is _Mode.RELAY and await self._client.send(packet.raw)
                self._note(Point.RELEASED if delivered else Point.UNDELIVERED, command="COMMIT")
            case ReplaceCommitOk(errno=errno):
                self._out += error_packet(errno, "HY000", "put here by toxiproxy", packet.sequence)
            case _:
                self._out += packet.raw

    async def _pass_reply(self, packet: Packet, reply: Reply) -> None:
        point = Point.ERROR if reply.errno is not None else Point.REPLY
        armed = self._fire(
            Subject(point, statement=reply.statement),
            command=reply.command.name,
            errno=reply.errno,
            size=len(packet.raw),
        )
        self._out += packet.raw
        match armed.fault if armed is not None else None:
            case CutAfterStatement(end=end):
                await self._flush()
                self._cut(end)
            case DarkLink():
                await self._flush()
                self._proxy.dark = True

    # Both.

    def _cut(self, end: End) -> None:
        """End the connection in the given way; the effect is then over."""
        self._end_client(end)
        self._settle()

    def _end_client(self, end: End) -> None:
        if end is End.SILENCE:
            self._mode = _Mode.DARK
            return
        self._mode = _Mode.GONE
        if end is End.RST:
            self._client.reset()
        else:
            self._client.finish()
        self._finish_server()

    def _finish_server(self) -> None:
        """Close the upstream, but not before MySQL has answered what was forwarded to it."""
        if self._session.idle:
            self._server.finish()
        else:
            self._finish_when_idle = True

    async def _flush(self) -> None:
        if self._out and self._mode is _Mode.RELAY and not self._is_dark():
            await self._client.send(bytes(self._out))
        self._out.clear()

    def _is_dark(self) -> bool:
        """Whether nothing passes; a connection that has met the darkness stays in it."""
        if self._proxy.dark:
            self._mode = _Mode.DARK
        return self._mode is _Mode.DARK

    def _fire(
        self,
        subject: Subject,
        *,
        command: str | None = None,
        size: int = 0,
        errno: int | None = None,
        in_transaction: bool | None = None,
    ) -> Armed | None:
        """Write down that the subject was reached, and return the fault that fires there, if any."""
        armed = self._proxy.armory.pick(subject)
        entry = self._note(
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

    def _settle(self) -> None:
        for armed in self._effects:
            armed.mark_finished()
        self._effects.clear()

    def _note(
        self,
        point: Point,
        *,
        command: str | None = None,
        fired: str | None = None,
        size: int = 0,
        errno: int | None = None,
        in_transaction: bool | None = None,
    ) -> Entry:
        return self._proxy.journal.write(
            self._number,
            point,
            thread_id=self._session.thread_id,
            command=command,
            fired=fired,
            size=size,
            errno=errno,
            in_transaction=in_transaction,
        )

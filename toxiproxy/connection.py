"""One client connection of the MySQL proxy: moves packets, and carries out the fault that is picked at a point."""

from __future__ import annotations

from typing import Final

from toxiproxy.base import FaultProxy, Peer, released
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
    ReplaceCommitOk,
    Subject,
)
from toxiproxy.journal import Point
from toxiproxy.link import Link
from toxiproxy.packets import Packet, PacketReader, error_packet
from toxiproxy.session import Command, Greeted, LoggedIn, MySQLSession, Refused, Reply, Unsolicited

_SSL_CONNECTION_ERROR: Final = 2026


class MySQLConnection(Link):
    """One client connection and its upstream, packet by packet."""

    def __init__(self, proxy: FaultProxy, number: int, client: Peer, session: MySQLSession) -> None:
        super().__init__(proxy, number, client)
        self._session = session
        self._out = bytearray()
        self._finish_when_idle = False

    async def from_client(self) -> None:
        packets = PacketReader()
        while data := await self.client.read():
            if not self.passes():
                continue
            for packet in packets.feed(data):
                if self.passes():
                    await self._take_from_client(packet)
        self.note(Point.CLIENT_CLOSED)
        if not self.is_dark():
            # Only its sending side is known to be over: an answer that is still due is delivered.
            self.finish_server()

    async def _take_from_client(self, packet: Packet) -> None:
        match self._session.from_client(packet):
            case None:
                await self.server.send(packet.raw)
            case Refused(wanted):
                await self._refuse(packet, wanted)
            case Command() as command:
                await self._take_command(packet, command)

    async def _refuse(self, packet: Packet, wanted: str) -> None:
        self.note(Point.REFUSED, command=wanted)
        message = f"toxiproxy reads this connection and speaks plain text only; the client asked for {wanted}"
        await self.client.send(error_packet(_SSL_CONNECTION_ERROR, "08S01", message, packet.sequence + 1))
        self.cut(End.FIN)

    async def _take_command(self, packet: Packet, command: Command) -> None:
        armed = self.fire(
            Subject(Point.COMMIT if command.is_commit else Point.COMMAND),
            command=command.name,
            size=len(packet.raw),
            in_transaction=command.in_transaction,
        )
        match armed.fault if armed is not None else None:
            case CutBeforeCommit(end=end):
                self._session.not_forwarded()
                self.cut(end)
            case HoldCommit(until=until):
                await released(until)
                delivered = await self.server.send(packet.raw)
                self.note(Point.RELEASED if delivered else Point.UNDELIVERED, command=command.name)
            case CutAfterCommit(end=end):
                await self.server.send(packet.raw)
                self.end_client(end)
            case _:
                await self.server.send(packet.raw)

    async def from_server(self) -> None:
        packets = PacketReader()
        while data := await self.server.read():
            for packet in packets.feed(data):
                await self._take_from_server(packet)
            await self._flush()
            if self._finish_when_idle and self._session.idle:
                self.server.finish()
        self.server_closed()

    async def _take_from_server(self, packet: Packet) -> None:
        match self._session.from_server(packet):
            case None:
                self._out += packet.raw
            case Greeted(greeting):
                self.thread_id = greeting.thread_id
                await self._pass_or_cut(Point.GREETING, greeting.raw, command="plain text only")
            case LoggedIn(errno):
                await self._pass_or_cut(Point.LOGIN, packet.raw, errno=errno)
            case Unsolicited(errno):
                self.note(Point.UNSOLICITED, errno=errno, size=len(packet.raw))
                self._out += packet.raw
            case Reply() as reply:
                await self._take_reply(packet, reply)

    async def _pass_or_cut(
        self, point: Point, raw: bytes, *, command: str | None = None, errno: int | None = None
    ) -> None:
        armed = self.fire(Subject(point), command=command, errno=errno, size=len(raw))
        if armed is not None and isinstance(armed.fault, CutInHandshake):
            self.cut(armed.fault.end)
        else:
            self._out += raw

    async def _take_reply(self, packet: Packet, reply: Reply) -> None:
        command = reply.command
        if reply.unrecognised:
            self.note(Point.UNRECOGNISED, command=command.name)
        if not command.is_commit:
            await self._pass_reply(packet, reply)
            return
        if reply.errno is None:
            armed = self.fire(Subject(Point.COMMIT_OK), command=command.name, size=len(packet.raw))
            await self._answer_commit(packet, armed)
        else:
            self.note(Point.ERROR, command=command.name, errno=reply.errno, size=len(packet.raw))
            self._out += packet.raw
        self.settle()

    async def _answer_commit(self, packet: Packet, armed: Armed | None) -> None:
        match armed.fault if armed is not None else None:
            case DropCommitOk(end=end, keep_bytes=keep):
                self._out += packet.raw[:keep]
                await self._flush()
                self.end_client(end)
            case DelayCommitOk(until=until):
                await self._flush()
                await released(until)
                delivered = self.passes() and await self.client.send(packet.raw)
                self.note(Point.RELEASED if delivered else Point.UNDELIVERED, command="COMMIT")
            case ReplaceCommitOk(errno=errno):
                self._out += error_packet(errno, "HY000", "put here by toxiproxy", packet.sequence)
            case _:
                self._out += packet.raw

    async def _pass_reply(self, packet: Packet, reply: Reply) -> None:
        point = Point.ERROR if reply.errno is not None else Point.REPLY
        armed = self.fire(
            Subject(point, statement=reply.statement),
            command=reply.command.name,
            errno=reply.errno,
            size=len(packet.raw),
        )
        self._out += packet.raw
        match armed.fault if armed is not None else None:
            case CutAfterStatement(end=end):
                await self._flush()
                self.cut(end)
            case DarkLink():
                await self._flush()
                self.proxy.dark = True

    def finish_server(self) -> None:
        """Close the upstream, but not before MySQL has answered what was forwarded to it."""
        if self._session.idle:
            self.server.finish()
        else:
            self._finish_when_idle = True

    async def _flush(self) -> None:
        if self._out and self.passes():
            await self.client.send(bytes(self._out))
        self._out.clear()

"""What the MySQL proxy and the WebSocket relay share: listening, tasks, the journal, and how a run is judged."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from toxiproxy.faults import Armed, Armory, Fault, UnfiredFault, UnrecognisedTraffic, Until
from toxiproxy.journal import Entry, Journal, Point

CHUNK: Final = 64 * 1024
_LINGER_ZERO: Final = struct.pack("ii", 1, 0)


class FaultProxy(ABC):
    """A TCP proxy on 127.0.0.1 with faults and a journal; an asynchronous context manager.

    It runs in the event loop that enters it, and it reads everything in plain text. Leaving the context ends every
    connection, and raises UnfiredFault when a fault was armed and did not fire, or UnrecognisedTraffic when something
    passed that it could not judge; an exception that is already passing is not replaced, it gets a note.
    """

    def __init__(
        self,
        upstream_host: str,
        upstream_port: int,
        *,
        on_entry: Callable[[Entry], None] | None = None,
        slice_bytes: int | None = None,
    ) -> None:
        """`on_entry` is called with each line of the journal. `slice_bytes` cuts what is sent, both ways, into
        pieces of at most that size, each sent on its own."""
        self.upstream = (upstream_host, upstream_port)
        self.journal = Journal(on_entry)
        self.armory = Armory()
        self.dark = False
        self.slice_bytes = slice_bytes
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: list[BaseException] = []
        self._accepted = 0
        self._port = 0

    @property
    def port(self) -> int:
        """The port it listens on, on 127.0.0.1."""
        return self._port

    def arm(self, fault: Fault) -> Armed:
        """Arm a fault; it may be done before a client connects or at any time after."""
        return self.armory.arm(fault)

    def heal(self) -> None:
        """End the darkness for new connections; those that lost bytes in it stay silent."""
        self.dark = False

    def require_fired(self) -> None:
        """Raise UnfiredFault unless every armed fault has fired, UnrecognisedTraffic if anything was not judged."""
        problem = self._problem()
        if problem is not None:
            raise problem

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=CHUNK)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        problem = self._problem()
        await self._close()
        problem = self._failure() or problem
        if problem is None:
            return
        if error is None:
            raise problem
        error.add_note(f"and the fault proxy says: {problem}")

    async def _close(self) -> None:
        """End the listener and every connection. Not safe to cancel: tasks could be left behind."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)
        if self._server is not None:
            await self._server.wait_closed()

    def _problem(self) -> Exception | None:
        unrecognised = self.journal.at(Point.UNRECOGNISED)
        if unrecognised:
            return UnrecognisedTraffic("; ".join(map(str, unrecognised)))
        unfired = self.armory.unfired()
        if unfired:
            names = ", ".join(f"{armed.fault.name} (matched {armed.seen} of {armed.fault.nth})" for armed in unfired)
            return UnfiredFault(f"armed and never fired: {names}")
        return None

    def _failure(self) -> Exception | None:
        if not self._failures:
            return None
        problem = RuntimeError("the fault proxy itself failed")
        problem.__cause__ = self._failures[0]
        return problem

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._accepted += 1
        client = Peer(reader, writer, self.slice_bytes)
        task = asyncio.get_running_loop().create_task(self._serve(self._accepted, client))
        self._tasks.add(task)
        task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failures.append(failure)

    async def _serve(self, number: int, client: Peer) -> None:
        try:
            await self.serve(number, client)
        finally:
            client.close()

    @abstractmethod
    async def serve(self, number: int, client: Peer) -> None:
        """Serve one accepted connection until it is over."""


class Peer:
    """One side of a connection: a stream whose end and whose failures are ordinary answers."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, slice_bytes: int | None = None
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._slice = slice_bytes
        self.was_reset = False

    async def read(self) -> bytes:
        """The next bytes; empty when the peer closed or reset the connection. Safe to cancel."""
        try:
            return await self._reader.read(CHUNK)
        except OSError:
            self.was_reset = True
            return b""

    async def send(self, data: bytes) -> bool:
        """Send bytes; False when the peer has gone. Cancelling leaves an unknown part of them sent."""
        if self._writer.is_closing():
            return False
        try:
            step = self._slice or max(len(data), 1)
            for start in range(0, len(data), step):
                self._writer.write(data[start : start + step])
                await self._writer.drain()
                if self._slice:
                    # The peer's loop gets its turn, so that it reads the piece alone.
                    await asyncio.sleep(0)
        except OSError:
            return False
        return not self._writer.is_closing()

    def finish(self) -> None:
        """Say that nothing more will be sent (FIN); what the peer sends can still be read."""
        with contextlib.suppress(OSError):
            if not self._writer.is_closing() and self._writer.can_write_eof():
                self._writer.write_eof()

    def reset(self) -> None:
        """Break the connection with an RST."""
        with contextlib.suppress(OSError):
            self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        self._writer.transport.abort()

    def close(self) -> None:
        """Close at once; what is not yet sent is lost."""
        self._writer.transport.abort()


async def connect(address: tuple[str, int], *, deadline: float, slice_bytes: int | None) -> Peer:
    """Connect to the upstream within `deadline` seconds. Raises OSError (TimeoutError is one)."""
    async with asyncio.timeout(deadline):
        reader, writer = await asyncio.open_connection(*address, limit=CHUNK)
    return Peer(reader, writer, slice_bytes)


async def released(until: Until) -> None:
    """Wait for the seconds, or for the event. Safe to cancel."""
    if isinstance(until, asyncio.Event):
        await until.wait()
    else:
        await asyncio.sleep(until)

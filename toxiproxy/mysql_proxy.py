"""The MySQL proxy: one session and one pair of pumps for each client connection."""

from __future__ import annotations

from collections.abc import Callable

from toxiproxy.base import FaultProxy, Peer
from toxiproxy.connection import MySQLConnection
from toxiproxy.journal import Entry
from toxiproxy.session import MySQLSession
from toxiproxy.transactions import TransactionTrace


class MySQLProxy(FaultProxy):
    """A fault proxy that understands MySQL's packets.

    It speaks plain text only: the greeting that it passes on offers neither TLS nor compression (the journal says so
    at `greeting`), and a client that asks for them all the same gets an error packet.
    """

    def __init__(
        self,
        upstream_host: str,
        upstream_port: int,
        *,
        on_entry: Callable[[Entry], None] | None = None,
        slice_bytes: int | None = None,
    ) -> None:
        """As FaultProxy."""
        super().__init__(upstream_host, upstream_port, on_entry=on_entry, slice_bytes=slice_bytes)
        self._sessions: dict[int, MySQLSession] = {}

    async def serve(self, number: int, client: Peer) -> None:
        """Serve one client connection until both of its sides are over."""
        session = self._sessions[number] = MySQLSession()
        await MySQLConnection(self, number, client, session).run()

    def connection_of(self, thread_id: int) -> int:
        """The number of the latest connection with this MySQL thread id. Raises LookupError."""
        for number, session in reversed(self._sessions.items()):
            if session.thread_id == thread_id:
                return number
        raise LookupError(f"no connection has thread id {thread_id}")

    def round_trips(self, connection: int | None = None) -> int:
        """How many commands of a connection, or of all, have been answered. The login is not counted."""
        sessions = self._sessions.values() if connection is None else [self._sessions[connection]]
        return sum(session.round_trips for session in sessions)

    def transactions(self, connection: int) -> list[TransactionTrace]:
        """The transactions of a connection, oldest first; the last may still be open."""
        return list(self._sessions[connection].transactions)

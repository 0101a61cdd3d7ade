"""The journal: what passed, and which fault fired where. Tests assert on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from time import monotonic
from typing import overload


class Point(StrEnum):
    """The named points of a connection. The first group is the MySQL proxy's, the second the relay's."""

    ACCEPTED = "accepted"
    UPSTREAM_REFUSED = "upstream-refused"
    GREETING = "greeting"
    REFUSED = "refused"
    LOGIN = "login"
    COMMAND = "command"
    COMMIT = "commit"
    """A recognised COMMIT, before it is forwarded."""
    REPLY = "reply"
    COMMIT_OK = "commit-ok"
    """The OK of a recognised COMMIT was read from MySQL, and not yet delivered."""
    ERROR = "error"
    UNRECOGNISED = "unrecognised"
    UNSOLICITED = "unsolicited"
    RELEASED = "released"
    """What was held went on its way."""
    UNDELIVERED = "undelivered"
    """What was held could no longer be delivered: its destination had gone."""
    CLIENT_CLOSED = "client-closed"
    SERVER_CLOSED = "server-closed"

    HTTP = "http"
    UPGRADE = "upgrade"
    CLIENT_FRAME = "client-frame"
    SERVER_FRAME = "server-frame"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the journal. It holds no text of a statement, no value and no payload.

    `seq` counts the entries from 1, `connection` the connections of the proxy from 1. `command` is the class of the
    command, or the type of the frame. `fired` names the fault that fired here. `bytes` is the size on the wire of
    what passed here. `at` is in seconds of the monotonic clock. `in_transaction` is the state before the command.
    """

    seq: int
    connection: int
    thread_id: int | None
    command: str | None
    point: Point
    fired: str | None
    bytes: int
    at: float
    errno: int | None
    in_transaction: bool | None

    def __str__(self) -> str:
        """The entry in plain words, one line."""
        words = [f"connection {self.connection}"]
        if self.thread_id is not None:
            words.append(f"(thread {self.thread_id})")
        words.append(str(self.point))
        if self.command is not None:
            words.append(self.command)
        if self.errno is not None:
            words.append(f"error {self.errno}")
        if self.fired is not None:
            words.append(f"<- {self.fired} fired")
        return " ".join(words)


class Journal(Sequence[Entry]):
    """All entries so far, oldest first."""

    def __init__(self, on_entry: Callable[[Entry], None] | None = None) -> None:
        self._entries: list[Entry] = []
        self._on_entry = on_entry
        self._waiters: dict[asyncio.Future[Entry], Callable[[Entry], bool]] = {}

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        return self._entries[index]

    def __len__(self) -> int:
        return len(self._entries)

    def write(
        self,
        connection: int,
        point: Point,
        *,
        thread_id: int | None = None,
        command: str | None = None,
        fired: str | None = None,
        size: int = 0,
        errno: int | None = None,
        in_transaction: bool | None = None,
    ) -> Entry:
        """Add an entry, stamp it, and wake those who wait for it."""
        entry = Entry(
            seq=len(self._entries) + 1,
            connection=connection,
            thread_id=thread_id,
            command=command,
            point=point,
            fired=fired,
            bytes=size,
            at=monotonic(),
            errno=errno,
            in_transaction=in_transaction,
        )
        self._entries.append(entry)
        if self._on_entry is not None:
            self._on_entry(entry)
        for waiter, predicate in self._waiters.items():
            if not waiter.done() and predicate(entry):
                waiter.set_result(entry)
        return entry

    def at(self, *points: Point, connection: int | None = None) -> list[Entry]:
        """The entries at these points, of one connection or of all."""
        return [e for e in self._entries if e.point in points and connection in {None, e.connection}]

    async def wait_for(self, predicate: Callable[[Entry], bool], timeout: float) -> Entry:  # noqa: ASYNC109 - a deadline is part of every wait here
        """The first entry that satisfies the predicate, past entries included. Safe to cancel.

        Raises TimeoutError when none has come within `timeout` seconds.
        """
        for entry in self._entries:
            if predicate(entry):
                return entry
        waiter: asyncio.Future[Entry] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = predicate
        try:
            async with asyncio.timeout(timeout):
                return await waiter
        finally:
            del self._waiters[waiter]

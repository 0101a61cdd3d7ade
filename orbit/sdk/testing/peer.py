"""The other end of a connection in the test's own process: `ServerSession` over whatever carries messages.

A subclass says what requests do. A test says what goes wrong, and reads what was seen; nothing depends on a clock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from orbit.protocol.errors import ErrorCode
from orbit.protocol.limits import Limits
from orbit.protocol.session import Hello, Invalid, ServerSession
from orbit.protocol.values import Secret, new_id
from orbit.protocol.vocabulary import Vocabulary
from orbit.sdk.changes import Changes
from orbit.sdk.credentials import Credentials

WAIT_S: Final = 20.0
"""How long `until` waits; a condition that has not come true by then never will."""


@dataclass(frozen=True)
class Seen:
    """A frame the client sent: its type and id, its body's dataclass, and the number of its connection, from 1."""

    type: str
    message_id: str
    body: Any
    connection: int


@dataclass(frozen=True)
class Drop:
    """Carry the request out and send no answer."""


@dataclass(frozen=True)
class Ignore:
    """Neither carry the request out nor answer it."""


@dataclass(frozen=True)
class Cut:
    """Carry the request out, send no answer and cut the connection."""


@dataclass(frozen=True)
class Refuse:
    """Do nothing and answer with an error."""

    code: ErrorCode


@dataclass(frozen=True)
class Hold:
    """Carry the request out and answer when `until` is set."""

    until: asyncio.Event


@dataclass(frozen=True)
class Say:
    """Send this text in place of the answer."""

    text: str | bytes


Misdeed: TypeAlias = Ignore | Drop | Cut | Refuse | Hold | Say


class Wire(Protocol):
    """What carries one connection's messages from the platform's side."""

    async def send_text(self, data: bytes | str) -> None:
        """Send one text message."""

    def cut(self) -> None:
        """Cut the connection without a word."""


class Peer:
    """One queue under one token, for one subprotocol."""

    def __init__(self, vocabulary: Vocabulary, limits: Limits | None = None) -> None:
        self.vocabulary = vocabulary
        self.limits = limits or Limits()
        self.queue_id = new_id()
        self.token = Secret("tok_" + new_id())
        self.seen: list[Seen] = []
        self.misdeeds: dict[str, deque[Misdeed]] = {}
        self.changes = Changes()
        self.connections: list[Any] = []

    @property
    def credentials(self) -> Credentials:
        """A client's credentials for this queue."""
        return Credentials(queue_id=self.queue_id, token=self.token)

    async def until(self, condition: Callable[[], bool], what: str = "") -> None:
        """Wait for a condition on what was seen; AssertionError naming `what` when it does not come true."""
        deadline = asyncio.get_running_loop().time() + WAIT_S
        if not await self.changes.until(condition, deadline):
            raise AssertionError(what or "the condition did not come true")

    def misbehave(self, request: str, misdeed: Misdeed) -> None:
        """Treat the next request of that type so; several are used up one by one."""
        self.misdeeds.setdefault(request, deque()).append(misdeed)

    def saw(self, kind: str) -> list[Any]:
        """The bodies of the client's frames of a type, in order."""
        return [frame.body for frame in self.seen if frame.type == kind]


class PeerConnection:
    """One client's connection; a subclass carries requests out and dispatches pushes."""

    def __init__(self, peer: Peer, wire: Wire, number: int) -> None:
        self.peer = peer
        self.wire = wire
        self.number = number
        self.session = ServerSession(peer.vocabulary, peer.limits)
        self.open = True
        self._out: asyncio.Queue[bytes | str] = asyncio.Queue()

    def carry_out(self, kind: str, message_id: str, body: Any) -> bytes:
        """Do what is asked and return the answer's frame."""
        raise NotImplementedError

    def dispatch(self) -> None:
        """Push what can be pushed."""
        raise NotImplementedError

    def send(self, data: bytes | str) -> None:
        """Send a text message as it is."""
        self._out.put_nowait(data)

    def cut(self) -> None:
        """Cut the connection without a word; nothing is dispatched to it any more."""
        self.open = False
        self.wire.cut()

    async def serve(self, messages: AsyncIterable[str | bytes]) -> None:
        """Answer the client's messages until there are no more. A frame that breaks the protocol is an error."""
        writer = asyncio.create_task(self._write(), name="fake-orbit-writer")
        try:
            async for message in messages:
                event = self.session.receive(message.encode() if isinstance(message, str) else message)
                if isinstance(event, Invalid):
                    raise AssertionError(f"the client sent what the contract forbids: {event}")  # noqa: TRY004 - a verdict
                kind = self.peer.vocabulary.hello if isinstance(event, Hello) else event.type
                self.peer.seen.append(Seen(kind, event.message_id, event.body, self.number))
                self.peer.changes.notify()
                await self._treat(kind, event.message_id, event.body)
                self.dispatch()
                self.peer.changes.notify()
        finally:
            self.open = False
            self.session.lost()
            writer.cancel()
            await asyncio.wait([writer])
            self.peer.changes.notify()

    async def _write(self) -> None:
        while True:
            await self.wire.send_text(await self._out.get())

    async def _treat(self, kind: str, message_id: str, body: Any) -> None:
        planned = self.peer.misdeeds.get(kind)
        misdeed = planned.popleft() if planned else None
        if isinstance(misdeed, Refuse):
            self.send(self.session.refuse(message_id, misdeed.code, "as the test wants it"))
            return
        if isinstance(misdeed, Ignore):
            return
        answer = self.carry_out(kind, message_id, body)
        if isinstance(misdeed, Cut):
            self.cut()
        elif isinstance(misdeed, Say):
            self.send(misdeed.text)
        elif not isinstance(misdeed, Drop):
            if isinstance(misdeed, Hold):
                await misdeed.until.wait()
            self.send(answer)

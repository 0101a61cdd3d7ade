"""The faults, and the rule that an armed fault must fire.

A fault is data: where it fires and what its effect is. `Armory` decides which fault fires at a point; the proxies
carry the effect out. A fault fires once.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeAlias

from toxiproxy.journal import Entry, Point


class UnfiredFault(AssertionError):
    """A fault was armed and never fired: the run proves nothing."""


class UnrecognisedTraffic(AssertionError):
    """Something passed at which no fault could have been placed: the run proves nothing."""


class End(StrEnum):
    """How a connection ends towards the client."""

    FIN = "fin"
    RST = "rst"
    SILENCE = "silence"
    """Nothing passes either way any more and neither side is closed, as if the cable had been pulled."""


Until: TypeAlias = float | asyncio.Event
"""How long something is held: seconds, or until the test sets the event."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What stands at a point: the facts that a fault may match on."""

    point: Point
    statement: int = 0
    frame_type: str | None = None
    answers: str | None = None


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong once.

    It fires at the `nth` subject that it matches, counted from its arming; when a fault armed earlier takes that
    one, at the next.
    """

    nth: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        if self.nth < 1:
            raise ValueError("nth counts from 1")

    @property
    def name(self) -> str:
        """The name that the journal uses."""
        return type(self).__name__

    def matches(self, subject: Subject) -> bool:
        """Whether this fault is about that subject."""
        raise NotImplementedError


@dataclass(frozen=True)
class RefuseConnect(Fault):
    """Reset a connection as soon as it is accepted. (A port that listens cannot refuse one connect and be sure of
    it: the client sees its connection reset before the greeting.)"""

    def matches(self, subject: Subject) -> bool:
        return subject.point is Point.ACCEPTED


@dataclass(frozen=True)
class SilentConnect(Fault):
    """Accept a connection and never say a word."""

    def matches(self, subject: Subject) -> bool:
        return subject.point is Point.ACCEPTED


@dataclass(frozen=True)
class CutInHandshake(Fault):
    """End the connection where the greeting, or the server's verdict on the login, would have been delivered."""

    at: Literal["greeting", "login"]
    end: End = End.RST

    def matches(self, subject: Subject) -> bool:
        return subject.point is (Point.GREETING if self.at == "greeting" else Point.LOGIN)


@dataclass(frozen=True)
class CutAfterStatement(Fault):
    """Deliver the OK of the n-th statement of a transaction, then end. BEGIN and COMMIT are not counted."""

    n: int
    end: End = End.FIN

    def matches(self, subject: Subject) -> bool:
        return subject.point is Point.REPLY and subject.statement == self.n


@dataclass(frozen=True)
class CutBeforeCommit(Fault):
    """End the connection when COMMIT arrives; MySQL never sees it."""

    end: End = End.FIN

    def matches(self, subject: Subject) -> bool:
        return subject.point is Point.COMMIT


@dataclass(frozen=True)
class CutAfterCommit(Fault):
    """Forward COMMIT and end the client's side at once; MySQL's answer is read and goes nowhere."""

    end: End = End.RST

    def matches(self, subject: Subject) -> bool:
        return subject.point is Point.COMMIT


@dataclass(frozen=True)
class HoldCommit(Fault):
    """Hold COMMIT, then deliver it, also when the client has gone meanwhile."""

    until: Until

    def matches(self, subject: Subject) -> bool:
        return subject.point is Point.COMMIT


@dataclass(frozen=True)
class DropCommitOk(Fault):
    """Read the OK of COMMIT from MySQL, deliver at most `keep_bytes` (0 to 10) of it, then end.

    An ERR answer to COMMIT passes and does not use the fault up.
    """

    end: End = End.FIN
    keep_bytes: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.keep_bytes <= 10:
            raise ValueError("keep_bytes is from 0 to 10: an OK packet has 11 bytes or more")

    def matches(self, subject: Subject) -> bool:
        return subject.point is Point.COMMIT_OK


@dataclass(frozen=True)
class DelayCommitOk(Fault):
    """Hold the OK of COMMIT, then deliver it."""

    until: Until

    def matches(self, subject: Subject) -> bool:
        return subject.point is Point.COMMIT_OK


@dataclass(frozen=True)
class ReplaceCommitOk(Fault):
    """Deliver an ERR packet in the place of the OK of COMMIT: the data are committed all the same."""

    errno: int = 1180

    def matches(self, subject: Subject) -> bool:
        return subject.point is Point.COMMIT_OK


@dataclass(frozen=True)
class DarkLink(Fault):
    """From the OK of the n-th statement of a transaction on, or from the next connect on when `after_statement` is
    0, every connection of the proxy is silent, new ones too, until the proxy is healed."""

    after_statement: int = 0

    def matches(self, subject: Subject) -> bool:
        if self.after_statement == 0:
            return subject.point is Point.ACCEPTED
        return subject.point is Point.REPLY and subject.statement == self.after_statement


@dataclass(frozen=True)
class _FrameFault(Fault):
    """About a WebSocket message of one direction, by the `type` member of its JSON text.

    `answers` narrows it to messages whose `reply_to` names a message of that type sent the other way.
    """

    type: str
    direction: Literal["server", "client"] = "server"
    answers: str | None = None

    def matches(self, subject: Subject) -> bool:
        return (
            subject.point is (Point.SERVER_FRAME if self.direction == "server" else Point.CLIENT_FRAME)
            and subject.frame_type == self.type
            and self.answers in {None, subject.answers}
        )


@dataclass(frozen=True)
class DropFrame(_FrameFault):
    """Swallow one message; the connection goes on."""


@dataclass(frozen=True)
class CutAtFrame(_FrameFault):
    """End the connection before one message is delivered, or right after."""

    when: Literal["before", "after"] = "before"
    end: End = End.FIN


@dataclass(frozen=True)
class HoldFrame(_FrameFault):
    """Hold one message, and all that follow it the same way, then deliver them."""

    until: Until = field(kw_only=True)


class Armed:
    """A fault that waits for its point, or has fired."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.seen = 0
        self._fired: asyncio.Event = asyncio.Event()
        self._finished: asyncio.Event = asyncio.Event()
        self._entry: Entry | None = None

    @property
    def fired(self) -> bool:
        """Whether it fired."""
        return self._fired.is_set()

    @property
    def finished(self) -> bool:
        """Whether its effect is over: what was held has been delivered, and answered where it is a command."""
        return self._finished.is_set()

    async def wait(self, timeout: float) -> Entry:  # noqa: ASYNC109 - a deadline is part of every wait here
        """Wait until it fires; return its line of the journal. Safe to cancel.

        Raises TimeoutError after `timeout` seconds.
        """
        async with asyncio.timeout(timeout):
            await self._fired.wait()
        if self._entry is None:
            raise UnfiredFault(f"{self.fault.name} fired without a line in the journal")
        return self._entry

    async def wait_finished(self, timeout: float) -> None:  # noqa: ASYNC109 - a deadline is part of every wait here
        """Wait until its effect is over. Safe to cancel. Raises TimeoutError after `timeout` seconds."""
        async with asyncio.timeout(timeout):
            await self._finished.wait()

    def mark_fired(self, entry: Entry) -> None:
        """Note that it fired, and where. For the proxies."""
        self._entry = entry
        self._fired.set()

    def mark_finished(self) -> None:
        """Note that its effect is over. For the proxies."""
        self._finished.set()


class Armory:
    """The faults of one proxy, in the order of their arming."""

    def __init__(self) -> None:
        self._armed: list[Armed] = []
        self._taken: set[Armed] = set()

    def arm(self, fault: Fault) -> Armed:
        """Add a fault."""
        armed = Armed(fault)
        self._armed.append(armed)
        return armed

    def pick(self, subject: Subject) -> Armed | None:
        """The fault that fires at this subject, if any; it will not be picked again."""
        picked: Armed | None = None
        for armed in self._armed:
            if armed in self._taken or not armed.fault.matches(subject):
                continue
            armed.seen += 1
            if picked is None and armed.seen >= armed.fault.nth:
                picked = armed
        if picked is not None:
            self._taken.add(picked)
        return picked

    def unfired(self) -> list[Armed]:
        """The faults that have not fired."""
        return [armed for armed in self._armed if not armed.fired]

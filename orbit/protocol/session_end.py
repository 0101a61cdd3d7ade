"""What the two ends of a conversation have in common: what they keep, when a frame may be sent or taken, and when not.

`phases.TRANSITIONS` is the whole machine; `session` has the two ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orbit.protocol.errors import ErrorCode, ProtocolError
from orbit.protocol.frame import Frame
from orbit.protocol.limits import Limits
from orbit.protocol.phases import TRANSITIONS, Kind, Phase
from orbit.protocol.vocabulary import Request, Vocabulary


class UnexpectedFrame(ProtocolError):
    """A well-formed frame that the conversation does not allow here; the connection cannot go on."""


class CannotSend(Exception):
    """A frame that this end must not send now; nothing was sent and the session is unchanged."""


class NotOpen(CannotSend):
    """The phase does not allow it."""


class SessionBusy(CannotSend):
    """As many requests as allowed are in flight already."""


class DuplicateRequest(CannotSend):
    """A request with this message id is in flight already."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A request that has no answer yet; `body` is None when it was invalid."""

    type: str
    exchange: Request
    body: Any


class SessionEnd:
    """What both ends keep: phase, session id, requests in flight, the last capacity."""

    def __init__(self, vocabulary: Vocabulary, limits: Limits | None = None) -> None:
        self.vocabulary = vocabulary
        self.limits = limits or Limits()
        self.phase = Phase.GREETING
        self.session_id: str | None = None
        self._pending: dict[str, Pending] = {}
        self._greeted_with: Any = None
        self._last_capacity: Any = None

    @property
    def in_flight(self) -> int:
        """How many requests have no answer yet."""
        return len(self._pending)

    def lost(self) -> tuple[str, ...]:
        """Close after the connection is gone; return the ids of unanswered requests, oldest first, hello included.

        Their fate is open: the other end may or may not have acted on them. A second call returns nothing.
        """
        self.phase = Phase.CLOSED
        open_ids = tuple(self._pending)
        self._pending.clear()
        return open_ids

    def _allows(self, kind: Kind) -> bool:
        return kind in TRANSITIONS[self.phase]

    def _advance(self, kind: Kind) -> None:
        self.phase = TRANSITIONS[self.phase][kind]

    def _require(self, kind: Kind) -> None:
        """Refuse to send what the phase does not allow."""
        if not self._allows(kind):
            raise NotOpen(f"{kind} is not allowed in phase {self.phase}")

    def _expect(self, kind: Kind) -> None:
        """Refuse to accept what the phase does not allow."""
        if not self._allows(kind):
            raise UnexpectedFrame(f"{kind} is not allowed in phase {self.phase}")

    def _check_session(self, frame: Frame) -> None:
        if frame.session_id is None or frame.session_id != self.session_id:
            raise UnexpectedFrame("session_id is not this session's")

    def _answer_kind(self, pending: Pending) -> Kind:
        if pending.type == self.vocabulary.hello:
            return Kind.WELCOME
        return Kind.CONFIRMATION if pending.type == self.vocabulary.capacity else Kind.ACK

    def _refusal_kind(self, pending: Pending) -> Kind:
        return Kind.FATAL if pending.type == self.vocabulary.hello else Kind.REFUSAL

    def _sequence_fault(self, body: Any) -> tuple[ErrorCode, str] | None:
        """Return why a capacity may not follow the last one, or None (seed worker-sdk section 3)."""
        last = self._last_capacity
        if last is None:
            return None if body.sequence == 1 else (ErrorCode.INVALID_ARGUMENT, "must start at 1")
        if body.sequence < last.sequence:
            return ErrorCode.STATE_CONFLICT, "must not go back"
        if body.sequence == last.sequence and body != last:
            return ErrorCode.IDEMPOTENCY_CONFLICT, "was used with other content"
        return None

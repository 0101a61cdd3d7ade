"""One connection's conversation, both ends of it, without I/O: bytes in, events out, bytes to send out.

`phases.TRANSITIONS` is the whole machine; what it does not list is a violation. A session checks direction and session
ids, that every reply answers a request that is in flight, that none is in flight twice and at most
`Limits.control_in_flight` are, that capacity sequences start at 1 and never go back, and that nothing is pushed before
the first confirmed capacity. Bodies are checked by the dataclasses that the `Vocabulary` names, so subprotocols differ
in data only. Leases, receipts and drain are the database's, timers and queues the channel's, reconnecting the
supervisor's. A session serves one connection and is not used again. Source: seeds worker-contract and worker-sdk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from orbit.protocol.errors import ErrorCode, InvalidValue
from orbit.protocol.frame import ACK, ERROR, MESSAGE_LENGTH_MAX, Direction, Frame, WireError, decode, encode
from orbit.protocol.limits import Limits
from orbit.protocol.phases import Kind, Phase
from orbit.protocol.session_end import (
    CannotSend,
    DuplicateRequest,
    NotOpen,
    Pending,
    SessionBusy,
    SessionEnd,
    UnexpectedFrame,
)
from orbit.protocol.values import new_id, parse_id
from orbit.protocol.vocabulary import Body, Request, Vocabulary

_SEQUENCE: Final = "body.sequence"


@dataclass(frozen=True, slots=True)
class Welcomed:
    """The server took the hello; requests may be sent."""

    body: Any


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to the request `message_id` of type `type`."""

    message_id: str
    type: str
    body: Any


@dataclass(frozen=True, slots=True)
class Refused:
    """The request `message_id` of type `type` was refused."""

    message_id: str
    type: str
    code: str
    message: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Push:
    """Something the server sent of its own accord."""

    message_id: str
    type: str
    body: Any


@dataclass(frozen=True, slots=True)
class Ended:
    """The server refused the hello or ended the session; the phase is CLOSED."""

    code: str
    message: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Hello:
    """A client presents itself; answer with `welcome` or `refuse`."""

    message_id: str
    body: Any


@dataclass(frozen=True, slots=True)
class Requested:
    """A client asks for something; answer with `reply` or `refuse`."""

    message_id: str
    type: str
    body: Any


@dataclass(frozen=True, slots=True)
class Invalid:
    """A hello or request whose body is wrong; answer with `refuse(message_id, code, message)`."""

    message_id: str
    type: str
    code: ErrorCode
    message: str


class ClientSession(SessionEnd):
    """The client's end. It ignores undeclared members of server frames: an older client may meet a newer server."""

    def hello(self, body: Body, message_id: str) -> bytes:
        """Return the frame that opens the conversation. Raise NotOpen when it was sent already."""
        self._require(Kind.HELLO)
        if self._pending:
            raise NotOpen("hello was sent already")
        data = self._send(self.vocabulary.hello, self.vocabulary.greeting, body, message_id)
        self._greeted_with = body
        return data

    def request(self, name: str, body: Body, message_id: str) -> bytes:
        """Return the frame of a request, which is in flight from now on.

        Raise NotOpen, SessionBusy, DuplicateRequest, or InvalidValue for a body that breaks the protocol's rules,
        capacity sequence included; in every case nothing is in flight that was not before.
        """
        self._require(Kind.REQUEST)
        exchange = self.vocabulary.requests.get(name)
        if exchange is None:
            raise InvalidValue("type", "is not a request of this subprotocol")
        if message_id in self._pending:
            raise DuplicateRequest(f"request {message_id} is in flight")
        if len(self._pending) >= self.limits.control_in_flight:
            raise SessionBusy(f"{len(self._pending)} requests are in flight")
        if name == self.vocabulary.capacity and (fault := self._sequence_fault(body)):
            raise InvalidValue(_SEQUENCE, fault[1])
        data = self._send(name, exchange, body, message_id)
        if name == self.vocabulary.capacity:
            self._last_capacity = body
        return data

    def receive(self, data: bytes) -> Welcomed | Reply | Refused | Push | Ended:
        """Take one text message. Raise InvalidJSON, InvalidValue or UnexpectedFrame when the server broke a rule.

        After an exception the session is as before; the caller closes the connection and calls `lost`.
        """
        frame = decode(data, direction=Direction.SERVER, lenient=True, limits=self.limits)
        if frame.type == ERROR:
            return self._take_error(frame)
        if frame.type in (ACK, self.vocabulary.welcome):
            return self._take_answer(frame)
        pushed = self.vocabulary.pushes.get(frame.type)
        if pushed is None:
            raise UnexpectedFrame("type is not one a server sends")
        self._expect(Kind.PUSH)
        self._check_session(frame)
        if frame.reply_to is not None:
            raise UnexpectedFrame("a push has no reply_to")
        body = pushed.body.parse(frame.body, lenient=True)
        pushed.check(self._greeted_with, body)
        return Push(frame.message_id, frame.type, body)

    def _send(self, name: str, exchange: Request, body: Body, message_id: str) -> bytes:
        wire = body.to_body()
        exchange.body.parse(wire)
        frame = Frame(type=name, message_id=parse_id(message_id, "message_id"), session_id=self.session_id, body=wire)
        data = encode(frame, limits=self.limits)
        self._pending[message_id] = Pending(name, exchange, body)
        return data

    def _take_answer(self, frame: Frame) -> Welcomed | Reply:
        answered, pending = self._answered(frame)
        kind = self._answer_kind(pending)
        if (kind is Kind.WELCOME) != (frame.type == self.vocabulary.welcome):
            raise UnexpectedFrame("type does not answer the request")
        self._expect(kind)
        if kind is not Kind.WELCOME:
            self._check_session(frame)
        elif frame.session_id is None:
            raise InvalidValue("session_id", "is required")
        body = pending.exchange.reply.parse(frame.body, lenient=True)
        pending.exchange.check(pending.body, body)
        del self._pending[answered]
        self._advance(kind)
        if kind is Kind.WELCOME:
            self.session_id = frame.session_id
            return Welcomed(body)
        return Reply(answered, pending.type, body)

    def _take_error(self, frame: Frame) -> Refused | Ended:
        assert frame.error is not None, "decode sets it for this type"
        if self.phase is Phase.GREETING and frame.session_id is not None:
            raise UnexpectedFrame("session_id before the welcome")
        if self.phase is not Phase.GREETING:
            self._check_session(frame)
        if frame.reply_to is None:
            self._expect(Kind.FATAL)
            self._advance(Kind.FATAL)
            return Ended(frame.error.code, frame.error.message)
        answered, pending = self._answered(frame)
        kind = self._refusal_kind(pending)
        self._expect(kind)
        del self._pending[answered]
        self._advance(kind)
        if kind is Kind.FATAL:
            return Ended(frame.error.code, frame.error.message)
        return Refused(answered, pending.type, frame.error.code, frame.error.message)

    def _answered(self, frame: Frame) -> tuple[str, Pending]:
        pending = self._pending.get(frame.reply_to) if frame.reply_to is not None else None
        if frame.reply_to is None or pending is None:
            raise UnexpectedFrame("reply_to names no request in flight")
        return frame.reply_to, pending


class ServerSession(SessionEnd):
    """The server's end. It refuses whatever is not declared."""

    def __init__(
        self, vocabulary: Vocabulary, limits: Limits | None = None, *, make_id: Callable[[], str] = new_id
    ) -> None:
        super().__init__(vocabulary, limits)
        self._make_id = make_id

    def receive(self, data: bytes) -> Hello | Requested | Invalid:
        """Take one text message; each result needs exactly one answer.

        Raise InvalidJSON, InvalidValue or UnexpectedFrame when the client broke a rule of the envelope or of the
        conversation: the session is as before, the caller sends `fatal` and closes the connection. A wrong body is
        no such case: it comes back as Invalid and costs only its own request.
        """
        frame = decode(data, direction=Direction.CLIENT, lenient=False, limits=self.limits)
        exchange = self._expected(frame)
        body: Any = None
        fault: tuple[ErrorCode, str] | None = None
        try:
            body = exchange.body.parse(frame.body)
        except InvalidValue as error:
            fault = ErrorCode.INVALID_ARGUMENT, str(error)
        if frame.type == self.vocabulary.capacity and fault is None:
            if conflict := self._sequence_fault(body):
                fault = conflict[0], f"{_SEQUENCE}: {conflict[1]}"
            else:
                self._last_capacity = body
        self._pending[frame.message_id] = Pending(frame.type, exchange, None if fault else body)
        if fault:
            return Invalid(frame.message_id, frame.type, *fault)
        if frame.type == self.vocabulary.hello:
            self._greeted_with = body
            return Hello(frame.message_id, body)
        return Requested(frame.message_id, frame.type, body)

    def _expected(self, frame: Frame) -> Request:
        """Return what the client's frame starts, after checking that it may start it now."""
        if frame.type == self.vocabulary.hello:
            self._expect(Kind.HELLO)
            if frame.session_id is not None:
                raise UnexpectedFrame("hello has no session_id")
            if self._pending:
                raise UnexpectedFrame("hello was sent already")
            return self.vocabulary.greeting
        exchange = self.vocabulary.requests.get(frame.type)
        if exchange is None:
            raise UnexpectedFrame("type is not one a client sends")
        self._expect(Kind.REQUEST)
        self._check_session(frame)
        if frame.message_id in self._pending:
            raise UnexpectedFrame("message_id is in flight already")
        if len(self._pending) >= self.limits.control_in_flight:
            raise UnexpectedFrame("too many requests in flight")
        return exchange

    def welcome(self, session_id: str, message_id: str, body: Body) -> bytes:
        """Return the answer to the hello `message_id`; the session is `session_id` from now on."""
        self._require(Kind.WELCOME)
        data = self._answer(self.vocabulary.welcome, parse_id(session_id, "session_id"), message_id, body)
        self.session_id = session_id
        return data

    def reply(self, message_id: str, body: Body) -> bytes:
        """Return the answer to the request `message_id`. The first one to a capacity opens the session for pushes."""
        self._require(Kind.ACK)
        return self._answer(ACK, self.session_id, message_id, body)

    def refuse(self, message_id: str, code: ErrorCode, message: str) -> bytes:
        """Return the refusal of the request `message_id`, or of the hello, which ends the session."""
        pending = self._find(message_id)
        kind = self._refusal_kind(pending)
        self._require(kind)
        data = self._error(code, message, reply_to=message_id)
        del self._pending[message_id]
        self._advance(kind)
        return data

    def push(self, name: str, body: Body, message_id: str) -> bytes:
        """Return a frame that answers nothing.

        Raise NotOpen before the first confirmed capacity, InvalidValue for a body that cannot be sent to this client.
        """
        self._require(Kind.PUSH)
        pushed = self.vocabulary.pushes.get(name)
        if pushed is None:
            raise InvalidValue("type", "is not a push of this subprotocol")
        wire = body.to_body()
        pushed.body.parse(wire)
        pushed.check(self._greeted_with, body)
        frame = Frame(type=name, message_id=parse_id(message_id, "message_id"), session_id=self.session_id, body=wire)
        return encode(frame, limits=self.limits)

    def fatal(self, code: ErrorCode, message: str) -> bytes:
        """Return the error that ends the session, whatever is in flight."""
        self._require(Kind.FATAL)
        data = self._error(code, message, reply_to=None)
        self._advance(Kind.FATAL)
        return data

    def _find(self, message_id: str) -> Pending:
        pending = self._pending.get(message_id)
        if pending is None:
            raise CannotSend(f"request {message_id} is not in flight")
        return pending

    def _answer(self, name: str, session_id: str | None, message_id: str, body: Body) -> bytes:
        pending = self._find(message_id)
        if pending.body is None:
            raise CannotSend(f"request {message_id} is invalid and can only be refused")
        kind = self._answer_kind(pending)
        self._require(kind)
        wire = body.to_body()
        pending.exchange.reply.parse(wire)
        pending.exchange.check(pending.body, body)
        frame = Frame(type=name, message_id=self._make_id(), session_id=session_id, reply_to=message_id, body=wire)
        data = encode(frame, limits=self.limits)
        del self._pending[message_id]
        self._advance(kind)
        return data

    def _error(self, code: ErrorCode, message: str, *, reply_to: str | None) -> bytes:
        error = WireError(code, message[:MESSAGE_LENGTH_MAX] or code)
        frame = Frame(
            type=ERROR, message_id=self._make_id(), session_id=self.session_id, reply_to=reply_to, error=error
        )
        return encode(frame, limits=self.limits)

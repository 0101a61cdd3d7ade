"""One MySQL connection as the proxy sees it, sans I/O: packets in, events out.

`MySQLSession` follows the phases of a connection, names each command, finds where its answer ends, keeps the
transaction's state from the status flags, and counts round trips. It decides no fault and moves no byte.

A COMMIT is recognised by two signals together: the statement's text, and SERVER_STATUS_IN_TRANS before it. What ends
a transaction in any other way than a recognised COMMIT or ROLLBACK is reported as `unrecognised`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from toxiproxy import handshake, sql
from toxiproxy.packets import Packet, ProtocolViolation
from toxiproxy.replies import (
    IN_TRANS,
    NO_BACKSLASH_ESCAPES,
    WITHOUT_REPLY,
    Com,
    ReplyReader,
    Result,
    errno_of,
    ok_status,
)
from toxiproxy.transactions import TransactionTrace

# After these errors the server may have ended the whole transaction, and an ERR packet carries no status flags.
_MAY_END_TRANSACTION: Final = frozenset({1180, 1181, 1205, 1206})
# This one always has.
_DEADLOCK: Final = 1213
_STATEMENTS: Final = frozenset({Com.QUERY, Com.STMT_EXECUTE})


class Phase(Enum):
    """Where a connection is. Login covers the first one and every COM_CHANGE_USER."""

    GREETING = auto()
    RESPONSE = auto()
    LOGIN = auto()
    COMMAND = auto()


@dataclass(frozen=True, slots=True)
class Command:
    """One command of the client. `in_transaction` is the state before it; None when that is not known."""

    name: str
    in_transaction: bool | None
    is_commit: bool
    expects_reply: bool


@dataclass(frozen=True, slots=True)
class Reply:
    """The end of the answer to a command. `errno` is None unless it is an error."""

    command: Command
    errno: int | None
    in_transaction: bool | None
    statement: int
    """Which statement of its transaction this was, from 1; 0 when it is no counted statement."""
    unrecognised: bool
    """The transaction ended, or was restarted, in a way that no fault could have been placed at."""


@dataclass(frozen=True, slots=True)
class Greeted:
    """The greeting, ready to be passed on."""

    greeting: handshake.Greeting


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """The server's verdict on a login; `errno` is None when it was accepted."""

    errno: int | None


@dataclass(frozen=True, slots=True)
class Unsolicited:
    """An error that answers no command: the server is ending the connection."""

    errno: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The client asked for TLS, or for something else that the greeting did not offer."""

    wanted: str


@dataclass(slots=True)
class _Pending:
    command: Command
    code: Com
    effects: tuple[sql.Effect, ...]
    reader: ReplyReader
    results: int = 0
    unrecognised: bool = False
    counted: bool = False


@dataclass(slots=True)
class MySQLSession:
    """The state of one connection. Feed it every packet of both directions, in the order they arrive."""

    phase: Phase = Phase.GREETING
    thread_id: int | None = None
    in_transaction: bool | None = False
    round_trips: int = 0
    transactions: list[TransactionTrace] = field(default_factory=list)
    _server_version: int = 0
    _capabilities: int = 0
    _backslash_escapes: bool = True
    _pending: deque[_Pending] = field(default_factory=deque)
    _open: TransactionTrace | None = None

    @property
    def idle(self) -> bool:
        """Whether no command waits for its answer."""
        return not self._pending

    def from_client(self, packet: Packet) -> Command | Refused | None:
        """Take a packet of the client. None means: pass it on, nothing to decide.

        Raises ProtocolViolation for a command that is not understood.
        """
        match self.phase:
            case Phase.GREETING:
                raise ProtocolViolation("the client spoke before the server's greeting")
            case Phase.RESPONSE:
                return self._response(packet.payload)
            case Phase.LOGIN:
                return None
            case Phase.COMMAND:
                return self._command(packet.payload)

    def not_forwarded(self) -> None:
        """Take back the last command: MySQL will never see it."""
        self._pending.pop()

    def from_server(self, packet: Packet) -> Greeted | LoggedIn | Reply | Unsolicited | None:
        """Take a packet of the server. None means: pass it on, nothing to decide.

        Raises ProtocolViolation for an answer that is not understood.
        """
        payload = packet.payload
        match self.phase:
            case Phase.GREETING:
                if payload[:1] == b"\xff":
                    return LoggedIn(errno_of(payload))
                greeting = handshake.read_greeting(packet)
                self.thread_id = greeting.thread_id
                self._server_version = greeting.server_version
                self.phase = Phase.RESPONSE
                return Greeted(greeting)
            case Phase.RESPONSE:
                if payload[:1] == b"\xff":
                    return Unsolicited(errno_of(payload))
                raise ProtocolViolation("the server went on before the client's handshake response")
            case Phase.LOGIN:
                return self._login(payload)
            case Phase.COMMAND:
                return self._reply(payload)

    def _response(self, payload: bytes) -> Refused | None:
        capabilities = handshake.read_capabilities(payload)
        if capabilities & handshake.CLIENT_SSL:
            return Refused("TLS")
        if capabilities & (handshake.CLIENT_COMPRESS | handshake.CLIENT_ZSTD_COMPRESSION_ALGORITHM):
            return Refused("compression")
        if capabilities & handshake.CLIENT_OPTIONAL_RESULTSET_METADATA:
            return Refused("optional result set metadata")
        if not capabilities & handshake.CLIENT_PROTOCOL_41:
            return Refused("a protocol older than 4.1")
        self._capabilities = capabilities
        self.phase = Phase.LOGIN
        return None

    def _login(self, payload: bytes) -> LoggedIn | None:
        match payload[:1]:
            case b"\x00":
                self._take_status(ok_status(payload))
                self.phase = Phase.COMMAND
                return LoggedIn(None)
            case b"\xff":
                return LoggedIn(errno_of(payload))
            case _:
                return None

    def _command(self, payload: bytes) -> Command:
        try:
            code = Com(payload[0]) if payload else None
        except ValueError:
            code = None
        if code is None:
            raise ProtocolViolation("the client sent a command that is not understood")
        statements = self._statements(code, payload)
        state = None if self._pending else self.in_transaction
        is_commit = statements.effects == (sql.Effect.COMMIT,) and state is not False
        command = Command(statements.name, state, is_commit, code not in WITHOUT_REPLY)
        if code is Com.CHANGE_USER:
            self._end("ROLLBACK")
            self.phase = Phase.LOGIN
            self.round_trips += 1
        elif command.expects_reply:
            reader = ReplyReader(code, deprecate_eof=bool(self._capabilities & handshake.CLIENT_DEPRECATE_EOF))
            self._pending.append(_Pending(command, code, statements.effects, reader))
        return command

    def _statements(self, code: Com, payload: bytes) -> sql.Statements:
        if code is not Com.QUERY:
            effect = sql.Effect.ROLLBACK if code is Com.RESET_CONNECTION else sql.Effect.OTHER
            return sql.Statements(f"COM_{code.name}", (effect,))
        start = 1
        if self._capabilities & handshake.CLIENT_QUERY_ATTRIBUTES:
            start = handshake.skip_query_attributes(payload)
        return sql.read(payload[start:], server_version=self._server_version, backslash_escapes=self._backslash_escapes)

    def _reply(self, payload: bytes) -> Reply | Unsolicited | None:
        if not self._pending:
            if payload[:1] == b"\xff":
                return Unsolicited(errno_of(payload))
            raise ProtocolViolation("the server answered a command that was not sent")
        pending = self._pending[0]
        result = pending.reader.feed(payload)
        if result is None:
            return None
        self._apply(pending, result)
        if not result.last:
            return None
        self._pending.popleft()
        return Reply(
            pending.command,
            result.errno,
            self.in_transaction,
            self._count(pending, result.errno),
            pending.unrecognised,
        )

    def _apply(self, pending: _Pending, result: Result) -> None:
        """Move the transaction's state by one result."""
        effect = pending.effects[min(pending.results, len(pending.effects) - 1)]
        pending.results += 1
        before = self.in_transaction
        if result.errno == _DEADLOCK:
            self.in_transaction = False
            self._end("error", pending)
        elif before and result.errno is not None:
            doubtful = effect is sql.Effect.COMMIT or result.errno in _MAY_END_TRANSACTION
            self.in_transaction = None if doubtful else before
        if result.status is None:
            return
        self._take_status(result.status)
        after = self.in_transaction
        named = effect is sql.Effect.ROLLBACK or (effect is sql.Effect.COMMIT and pending.command.is_commit)
        ended = before is not False and (not after or effect in {sql.Effect.COMMIT, sql.Effect.ROLLBACK})
        restarted = before is True and effect is sql.Effect.RESTART
        if before is True and ((ended and not named) or restarted):
            pending.unrecognised = True
        if ended or restarted:
            self._end(pending.command.name, pending)
        if after and self._open is None:
            self._open = TransactionTrace()
            self.transactions.append(self._open)

    def _take_status(self, status: int) -> None:
        self.in_transaction = bool(status & IN_TRANS)
        self._backslash_escapes = not status & NO_BACKSLASH_ESCAPES

    def _end(self, name: str, pending: _Pending | None = None) -> None:
        """Close the open transaction's count; the command that ended it is its last round trip."""
        if self._open is None:
            return
        self._open.round_trips += 1
        self._open.ended = name
        self._open = None
        if pending is not None:
            pending.counted = True

    def _count(self, pending: _Pending, errno: int | None) -> int:
        """Count a finished command; return its place among the statements of its transaction, or 0."""
        self.round_trips += 1
        if self._open is None or pending.counted:
            return 0
        self._open.round_trips += 1
        if errno is not None or pending.code not in _STATEMENTS or sql.Effect.OTHER not in pending.effects:
            return 0
        self._open.statements += 1
        return self._open.statements

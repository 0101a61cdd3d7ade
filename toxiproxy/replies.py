"""Where the answer to a command ends, and what its status flags say. Sans I/O.

One `ReplyReader` follows the answer to one command. Source: MySQL source documentation, "Command Phase": OK, EOF and
ERR packets, text and binary result sets with and without CLIENT_DEPRECATE_EOF, multiple results, prepared statements.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from typing import Final

from toxiproxy.packets import ProtocolViolation, length_encoded_int

IN_TRANS: Final = 0x0001
MORE_RESULTS: Final = 0x0008
CURSOR_EXISTS: Final = 0x0040
NO_BACKSLASH_ESCAPES: Final = 0x0200

_OK: Final = 0x00
_LOCAL_INFILE: Final = 0xFB
_EOF: Final = 0xFE
_ERR: Final = 0xFF


class Com(IntEnum):
    """The commands that are understood."""

    QUIT = 0x01
    INIT_DB = 0x02
    QUERY = 0x03
    FIELD_LIST = 0x04
    REFRESH = 0x07
    STATISTICS = 0x09
    PROCESS_INFO = 0x0A
    PROCESS_KILL = 0x0C
    DEBUG = 0x0D
    PING = 0x0E
    CHANGE_USER = 0x11
    STMT_PREPARE = 0x16
    STMT_EXECUTE = 0x17
    STMT_SEND_LONG_DATA = 0x18
    STMT_CLOSE = 0x19
    STMT_RESET = 0x1A
    SET_OPTION = 0x1B
    STMT_FETCH = 0x1C
    RESET_CONNECTION = 0x1F


WITHOUT_REPLY: Final = frozenset({Com.QUIT, Com.STMT_SEND_LONG_DATA, Com.STMT_CLOSE})


@dataclass(frozen=True, slots=True)
class Result:
    """One result of a command.

    `status` is None where the packet carries none: ERR, the answer to COM_STMT_PREPARE, COM_STATISTICS.
    `last` says that the answer ends here.
    """

    status: int | None
    errno: int | None
    last: bool


class _State(Enum):
    FIRST = auto()
    DEFINITIONS = auto()
    DEFINITIONS_END = auto()
    ROWS = auto()
    PREPARED = auto()


class ReplyReader:
    """Follow the answer to one command, packet by packet."""

    def __init__(self, command: Com, *, deprecate_eof: bool) -> None:
        self._command = command
        self._deprecate_eof = deprecate_eof
        self._state = _State.ROWS if command in {Com.STMT_FETCH, Com.FIELD_LIST} else _State.FIRST
        self._left = 0
        self._steps = {
            _State.FIRST: self._first,
            _State.DEFINITIONS: self._definition,
            _State.DEFINITIONS_END: self._definitions_end,
            _State.ROWS: self._row,
            _State.PREPARED: self._prepared_part,
        }

    def feed(self, payload: bytes) -> Result | None:
        """Take the payload of the next packet; return the result that it completes, if any.

        Raises ProtocolViolation for what no answer to this command may hold.
        """
        if not payload:
            raise ProtocolViolation("the server sent an empty packet")
        if payload[0] == _ERR and self._state in {_State.FIRST, _State.ROWS}:
            return Result(None, errno_of(payload), last=True)
        return self._steps[self._state](payload)

    def _first(self, payload: bytes) -> Result | None:
        if self._command is Com.STATISTICS:
            return Result(None, None, last=True)
        if self._command is Com.STMT_PREPARE:
            return self._prepared(payload)
        if payload[0] == _OK:
            return self._ended(ok_status(payload))
        if payload[0] == _EOF and len(payload) < 9:
            return self._ended(_eof_status(payload))
        if payload[0] == _LOCAL_INFILE:
            raise ProtocolViolation("LOAD DATA LOCAL is not supported")
        self._left, _ = length_encoded_int(payload, 0)
        self._state = _State.DEFINITIONS
        return None

    def _prepared(self, payload: bytes) -> Result | None:
        if payload[0] != _OK or len(payload) < 9:
            raise ProtocolViolation("the answer to COM_STMT_PREPARE is malformed")
        columns = int.from_bytes(payload[5:7], "little")
        parameters = int.from_bytes(payload[7:9], "little")
        eof = 0 if self._deprecate_eof else 1
        self._left = sum(count + eof for count in (columns, parameters) if count)
        if self._left == 0:
            return Result(None, None, last=True)
        self._state = _State.PREPARED
        return None

    def _prepared_part(self, _payload: bytes) -> Result | None:
        self._left -= 1
        return None if self._left else Result(None, None, last=True)

    def _definition(self, _payload: bytes) -> Result | None:
        self._left -= 1
        if self._left == 0:
            self._state = _State.ROWS if self._deprecate_eof else _State.DEFINITIONS_END
        return None

    def _definitions_end(self, payload: bytes) -> Result | None:
        status = _eof_status(payload)
        if status & CURSOR_EXISTS:
            return self._ended(status)
        self._state = _State.ROWS
        return None

    def _row(self, payload: bytes) -> Result | None:
        # A row may start with 0xFE too: a column of 2^24 bytes and more, so a long packet.
        if payload[0] != _EOF or len(payload) >= (0xFFFFFF if self._deprecate_eof else 9):
            return None
        status = ok_status(payload) if self._deprecate_eof else _eof_status(payload)
        return self._ended(status)

    def _ended(self, status: int) -> Result:
        self._state = _State.FIRST
        return Result(status, None, last=not status & MORE_RESULTS)


def ok_status(payload: bytes) -> int:
    """The status flags of an OK packet, or of the OK packet that ends a result set. Raises ProtocolViolation."""
    _, at = length_encoded_int(payload, 1)
    _, at = length_encoded_int(payload, at)
    if at + 2 > len(payload):
        raise ProtocolViolation("an OK packet is too short")
    return int.from_bytes(payload[at : at + 2], "little")


def errno_of(payload: bytes) -> int:
    """The error number of an ERR packet. Raises ProtocolViolation."""
    if len(payload) < 3:
        raise ProtocolViolation("an ERR packet is too short")
    return int.from_bytes(payload[1:3], "little")


def _eof_status(payload: bytes) -> int:
    if payload[0] != _EOF or len(payload) < 5:
        raise ProtocolViolation("an EOF packet was expected")
    return int.from_bytes(payload[3:5], "little")

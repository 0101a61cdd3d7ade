"""What a database failure means: one table over (stage, errno), and the exceptions that carry its answer.

    DatabaseError
    ├── StatementFailed     a statement of the transaction failed; the transaction will be rolled back
    ├── DuplicateKey        the same, errno 1062, from a statement that said it expects this
    ├── NotCommitted        COMMIT was never sent: nothing of this transaction's is in the database
    └── CommitUnconfirmed   COMMIT was handed to the socket and its OK packet did not come back

Whether a transaction may be in the database is decided by the stage alone. No error number says it: the same 2013
comes back from a COMMIT that was lost on the way out and from one whose answer was lost, and an ERR packet to COMMIT
may come from a transaction that is durable (a failing sync of the binary log). The number only decides what to do
with a transaction that was certainly not committed.

Messages hold class, number, kind and a fixed phrase of ours, never the server's text: it quotes row values. For the
same reason none of these exceptions keeps the driver's exception as its context.

Numbers: MySQL 8.4 Error Message Reference (server 1000-1999 and 3000-, client 2000-2999).
"""

from __future__ import annotations

from enum import Enum, StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class Stage(Enum):
    """How far a transaction has come."""

    OPENING = "opening"
    WORKING = "working"
    COMMITTING = "committing"
    COMMITTED = "committed"


class Kind(StrEnum):
    """What to do about a failure."""

    RETRY = "retry"
    """Run the transaction again; it lost a race."""
    RECONNECT = "reconnect"
    """Run it again on a new connection; this one is gone or leads to a server that no longer takes writes."""
    BACK_OFF = "back_off"
    """Run it again later and tell somebody: the server is short of something, or the number is unknown here."""
    DATA = "data"
    """The same values will be refused every time."""
    DEFECT = "defect"
    """Program and tables do not fit each other; nothing will work until one of them changes."""
    CONFIGURATION = "configuration"
    """Account, privileges, TLS or a setting of the server are wrong; nothing will work until somebody changes them."""
    UNCONFIRMED = "unconfirmed"
    """The transaction may or may not be in the database."""

    @property
    def passes(self) -> bool:
        """Tell whether the same transaction may succeed later without anybody changing anything."""
        return self in {Kind.RETRY, Kind.RECONNECT, Kind.BACK_OFF}


_OPENING: Final[Mapping[int, Kind]] = {
    1040: Kind.BACK_OFF,  # too many connections
    1043: Kind.RECONNECT,  # bad handshake
    1044: Kind.CONFIGURATION,  # access denied to the database
    1045: Kind.CONFIGURATION,  # access denied
    1049: Kind.CONFIGURATION,  # unknown database
    1053: Kind.RECONNECT,  # server shutdown in progress
    1129: Kind.BACK_OFF,  # host blocked after many errors
    1130: Kind.CONFIGURATION,  # host not allowed
    1158: Kind.RECONNECT,  # network: read error
    1159: Kind.RECONNECT,  # network: read timeout
    1160: Kind.RECONNECT,  # network: write error
    1161: Kind.RECONNECT,  # network: write timeout
    1193: Kind.CONFIGURATION,  # unknown system variable: too old a server
    1203: Kind.BACK_OFF,  # too many connections of this user
    1226: Kind.BACK_OFF,  # a resource limit of this user
    1251: Kind.CONFIGURATION,  # client does not support the authentication
    1273: Kind.CONFIGURATION,  # unknown collation: too old a server
    1290: Kind.RECONNECT,  # read-only server
    1862: Kind.CONFIGURATION,  # password expired
    2003: Kind.RECONNECT,  # cannot connect
    2013: Kind.RECONNECT,  # connection lost
    2026: Kind.CONFIGURATION,  # no TLS
    2059: Kind.CONFIGURATION,  # authentication plugin
    3032: Kind.RECONNECT,  # offline mode
    3118: Kind.CONFIGURATION,  # account locked
    3159: Kind.CONFIGURATION,  # the server demands TLS
}

_WORKING: Final[Mapping[int, Kind]] = {
    1020: Kind.RETRY,  # record changed since last read
    1021: Kind.BACK_OFF,  # disk full
    1030: Kind.BACK_OFF,  # error from the storage engine
    1037: Kind.BACK_OFF,  # out of memory
    1038: Kind.BACK_OFF,  # out of sort memory
    1039: Kind.BACK_OFF,  # unexpected end of file
    1040: Kind.BACK_OFF,  # too many connections
    1041: Kind.BACK_OFF,  # out of resources
    1044: Kind.CONFIGURATION,  # access denied to the database
    1045: Kind.CONFIGURATION,  # access denied
    1048: Kind.DATA,  # NULL in a NOT NULL column
    1049: Kind.CONFIGURATION,  # unknown database
    1050: Kind.DEFECT,  # table exists
    1053: Kind.RECONNECT,  # server shutdown in progress
    1054: Kind.DEFECT,  # unknown column
    1062: Kind.DATA,  # duplicate key where none was expected
    1064: Kind.DEFECT,  # not SQL
    1114: Kind.BACK_OFF,  # table full
    1118: Kind.DATA,  # row too large
    1136: Kind.DEFECT,  # number of values differs from number of columns
    1142: Kind.CONFIGURATION,  # command denied on the table
    1143: Kind.CONFIGURATION,  # command denied on the column
    1146: Kind.DEFECT,  # no such table
    # A statement larger than max_allowed_packet. `checks` asks for more than any statement of ours needs: somebody has
    # lowered it since.
    1153: Kind.CONFIGURATION,
    1197: Kind.BACK_OFF,  # transaction larger than the binary log's cache
    1205: Kind.RETRY,  # lock wait timeout; only the statement was undone
    1206: Kind.RETRY,  # lock table full
    1213: Kind.RETRY,  # deadlock; everything was undone
    1227: Kind.CONFIGURATION,  # a privilege is missing
    1264: Kind.DATA,  # number out of range
    1265: Kind.DATA,  # value truncated
    1290: Kind.RECONNECT,  # read-only server, as after a failover
    1292: Kind.DATA,  # wrong date, time or number
    1317: Kind.RETRY,  # statement killed; the transaction is still open
    1364: Kind.DATA,  # no default value
    1366: Kind.DATA,  # wrong value for the column's type or character set
    1406: Kind.DATA,  # value too long
    1412: Kind.RETRY,  # table definition changed
    1441: Kind.DATA,  # date out of range
    1792: Kind.CONFIGURATION,  # read-only transaction
    1836: Kind.RECONNECT,  # server in read-only mode
    1927: Kind.RECONNECT,  # connection killed
    2006: Kind.RECONNECT,  # server has gone away
    2013: Kind.RECONNECT,  # connection lost during a statement
    2014: Kind.RECONNECT,  # packets out of order
    2055: Kind.RECONNECT,  # connection lost, with the system's error
    3024: Kind.RETRY,  # statement took too long
    3032: Kind.RECONNECT,  # offline mode
    3140: Kind.DATA,  # not JSON
    3150: Kind.DATA,  # JSON value too large
    3157: Kind.DATA,  # JSON nested too deeply
    3168: Kind.RECONNECT,  # server is not available
    3169: Kind.RECONNECT,  # session was killed
    3572: Kind.RETRY,  # NOWAIT and locked
    3819: Kind.DATA,  # check constraint
    3854: Kind.DATA,  # character set cannot hold the value
    4031: Kind.RECONNECT,  # idle for longer than wait_timeout
}

TABLE: Final[Mapping[Stage, Mapping[int, Kind]]] = MappingProxyType(
    {
        Stage.OPENING: MappingProxyType(_OPENING),
        Stage.WORKING: MappingProxyType(_WORKING),
        # On purpose empty: no answer to COMMIT but its OK packet proves anything.
        Stage.COMMITTING: MappingProxyType({}),
    }
)
"""The one table. `classify` adds what is true of all other numbers."""

BUDGET_SPENT: Final = "the budget was spent"

# The server closes the connection after these although they say nothing about it.
_CLOSES_CONNECTION: Final = frozenset({1153})


def classify(stage: Stage, errno: int | None) -> Kind:
    """Tell what a failure at `stage` means; errno None stands for a timeout, a cancellation or no number at all."""
    if stage is Stage.COMMITTED:
        raise ValueError("nothing fails after COMMIT was confirmed")
    if stage is Stage.COMMITTING:
        return Kind.UNCONFIRMED
    if errno is None:
        return Kind.RECONNECT
    known = TABLE[stage].get(errno)
    if known is not None:
        return known
    # 2000-2999 are made by the client, about its connection.
    return Kind.RECONNECT if 2000 <= errno <= 2999 else Kind.BACK_OFF


def keeps_connection(errno: int | None) -> bool:
    """Tell whether the connection can still be used (for a ROLLBACK) after a statement failed with `errno`."""
    if errno is None or errno in _CLOSES_CONNECTION:
        return False
    return classify(Stage.WORKING, errno) is not Kind.RECONNECT


class DatabaseError(Exception):
    """The database did not do what was asked. `reason` is a fixed phrase of ours or empty."""

    def __init__(self, errno: int | None, kind: Kind, reason: str = "") -> None:
        super().__init__(errno, kind, reason)
        self.errno = errno
        self.kind = kind
        self.reason = reason

    def _facts(self) -> str:
        return f"errno={self.errno} kind={self.kind}"

    def __str__(self) -> str:
        return f"{type(self).__name__} {self._facts()}" + (f" ({self.reason})" if self.reason else "")


class StatementFailed(DatabaseError):
    """A statement failed. The transaction is doomed: `run` rolls it back even if this is caught."""


class DuplicateKey(DatabaseError):
    """A statement run with duplicate_ok=True met an existing key (1062). The transaction is doomed as well."""

    def __init__(self) -> None:
        super().__init__(1062, Kind.DATA)

    def __reduce__(self) -> tuple[type[DuplicateKey], tuple[()]]:
        return type(self), ()


class NotCommitted(DatabaseError):
    """COMMIT was never sent. `stage` is how far the transaction came: OPENING or WORKING."""

    def __init__(self, errno: int | None, kind: Kind, stage: Stage, reason: str = "") -> None:
        super().__init__(errno, kind, reason)
        self.args = (errno, kind, stage, reason)
        self.stage = stage

    def _facts(self) -> str:
        return f"{super()._facts()} stage={self.stage.value}"


class CommitUnconfirmed(DatabaseError):
    """COMMIT was handed to the socket and not confirmed; only running the same transaction again can tell.

    A look at the row cannot: the old session may still be committing. `connection_id` is the server's thread id of
    the abandoned connection, for whoever reads the server's logs.
    """

    def __init__(self, errno: int | None, connection_id: int) -> None:
        super().__init__(errno, Kind.UNCONFIRMED)
        self.args = (errno, connection_id)
        self.connection_id = connection_id

    def _facts(self) -> str:
        return f"{super()._facts()} connection={self.connection_id}"


def unconfirmed_behind(error: BaseException) -> CommitUnconfirmed | None:
    """Find the CommitUnconfirmed behind an exception that had to pass on, such as a CancelledError.

    `Lane.run` raises a cancellation that met an unanswered COMMIT `from` its CommitUnconfirmed, and asyncio.timeout
    keeps that chain when it turns the cancellation into a TimeoutError.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, CommitUnconfirmed):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None

"""The deadlines of a lane, in one frozen object that is passed in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneTimes:
    """All in seconds. Those in whole seconds are session variables of MySQL.

    The server's waits end before the client's deadlines: a lock wait that times out costs an error packet, not the
    connection. They are also what frees the locks of a client that vanished without a word.
    """

    connect_s: float = 2.0
    """One host: name, TCP, TLS, login and session settings together. The driver's own limit covers TCP alone."""
    statement_s: float = 4.0
    commit_s: float = 4.0
    cleanup_s: float = 0.5
    """ROLLBACK or COM_QUIT; afterwards the connection is dropped."""
    idle_s: float = 20.0
    """A connection unused for longer is replaced before a transaction starts on it. Below `wait_timeout_s`."""
    unacknowledged_s: float = 5.0
    """TCP_USER_TIMEOUT: sent bytes that nobody acknowledges for this long end the connection (RFC 5482)."""
    wait_timeout_s: int = 30
    row_lock_s: int = 2
    metadata_lock_s: int = 3

    def __post_init__(self) -> None:
        floats = (self.connect_s, self.statement_s, self.commit_s, self.cleanup_s, self.idle_s, self.unacknowledged_s)
        if min(floats) <= 0 or min(self.wait_timeout_s, self.row_lock_s, self.metadata_lock_s) < 1:
            raise ValueError("times of a lane are positive")
        if self.idle_s >= self.wait_timeout_s:
            raise ValueError("idle_s must be below wait_timeout_s")


DEFAULT_TIMES: Final = LaneTimes()

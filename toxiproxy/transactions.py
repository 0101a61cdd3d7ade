"""What is counted of one transaction."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TransactionTrace:
    """What was counted of one transaction.

    `round_trips` runs from the command whose answer first showed SERVER_STATUS_IN_TRANS to the one that ended it,
    both included. `statements` leaves out BEGIN, COMMIT and ROLLBACK, and what failed. `ended` is the command that
    ended it ("error" for a deadlock), None while it is open.
    """

    round_trips: int = 0
    statements: int = 0
    ended: str | None = None

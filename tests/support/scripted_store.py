"""A store without a database: it answers as it was told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from orbit.mysql.errors import CommitUnconfirmed, Kind, NotCommitted, Stage

if TYPE_CHECKING:
    from orbit.protocol.event import Event
    from receiver.outcome import Applied

DOUBT = CommitUnconfirmed(2013, 7)
LOCKED = NotCommitted(1205, Kind.RETRY, Stage.WORKING)
REFUSED = NotCommitted(2003, Kind.RECONNECT, Stage.OPENING)
SILENT = NotCommitted(None, Kind.RECONNECT, Stage.OPENING, "no answer in time")
DENIED = NotCommitted(1142, Kind.CONFIGURATION, Stage.WORKING)
LOWERED = NotCommitted(1153, Kind.CONFIGURATION, Stage.WORKING)
TOO_LONG = NotCommitted(1406, Kind.DATA, Stage.WORKING)


class Scripted:
    """Answers each call with the next entry and keeps the budgets it was given; without an entry it waits for ever."""

    def __init__(self, *answers: Applied | Exception) -> None:
        self._answers = list(answers)
        self.budgets: list[float] = []
        self.unconfirmed = 0

    async def apply(self, event: Event, *, budget_s: float) -> Applied:
        self.budgets.append(budget_s)
        if not self._answers:
            await asyncio.Event().wait()
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            self.unconfirmed += isinstance(answer, CommitUnconfirmed)
            raise answer
        return answer

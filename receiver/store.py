"""The receiver's one transaction: record the event and advance the view together, or find that it is recorded.

There is no other way to settle an unconfirmed COMMIT than calling `apply` again with the same event. A SELECT would
not do: the abandoned session may commit a moment later. The INSERT waits for that session's row lock, and then either
meets the row (it was committed) or takes its place (it was not, and now it is).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from orbit.mysql.errors import CommitUnconfirmed, DuplicateKey, Kind, NotCommitted, Stage
from orbit.protocol.values import new_id
from orbit.runtime.logs import get_logger
from receiver.outcome import Applied, EventConflict, VersionConflict
from receiver.policy import CALL_S
from receiver.record import Record, record_of
from receiver.statements import INSERT_INBOX, MARK_STALE, SELECT_RECORDED, UPSERT_VIEW, Verdict

if TYPE_CHECKING:
    from orbit.mysql.lane import Lane
    from orbit.mysql.transaction import Transaction
    from orbit.protocol.event import Event

ROUNDS: Final = 3
"""How often one call starts again because the row that it met was gone when it looked."""

_REHEARSAL: Final = "rehearsal-"
"""Starts what no identifier can start with: those are hexadecimal digits."""

_log: Final = get_logger(__name__)


class _Recorded(Exception):
    """The inbox INSERT met a row; raised out of the transaction so that the lane rolls it back."""


class Store:
    """The inbox and the views of one consumer of one queue, over one lane. One call at a time.

    `unconfirmed` counts the COMMITs that were not confirmed, also where a cancellation passed on instead of
    CommitUnconfirmed.
    """

    def __init__(self, lane: Lane, *, consumer_name: str, queue_id: str) -> None:
        self._lane = lane
        self._consumer_name = consumer_name
        self._queue_id = queue_id
        self.unconfirmed = 0

    async def apply(self, event: Event, *, budget_s: float = CALL_S) -> Applied:
        """Record `event` and advance its task's view, in one transaction of at most `budget_s` seconds.

        Returning means that the event is in the inbox, committed: the delivery may be acknowledged. First time:
        (True, False), or (False, False) when the view already has a higher version. Known: (as it was then, True).

        Raises InvalidEvent before any SQL; EventConflict when the event id is recorded with other content and
        VersionConflict when the view has this version from another event, nothing changed; CommitUnconfirmed when it
        may or may not be recorded, which the same call made again decides; NotCommitted when it certainly is not (this
        call did not record it; after an unconfirmed one the question stays open). Safe to cancel: in the middle of
        COMMIT the fate is unconfirmed, before it nothing is recorded.
        """
        record = record_of(event, consumer_name=self._consumer_name, queue_id=self._queue_id)
        deadline = asyncio.get_running_loop().time() + budget_s
        for _ in range(ROUNDS):
            verdict = await self._record(record, deadline)
            if verdict is not None:
                # REPEATED: the view has this very event although the inbox had lost it. Its row is back as it was.
                return Applied(applied=verdict is not Verdict.STALE, duplicate=verdict is Verdict.REPEATED)
            row = await self._recorded(record, deadline)
            if row is not None:
                sha256, applied = row
                if sha256 != event.sha256:
                    raise EventConflict(event.event_id, sha256, event.sha256)
                return Applied(applied=bool(applied), duplicate=True)
        raise NotCommitted(None, Kind.RETRY, Stage.WORKING, "the recorded row vanished each time")

    async def rehearse(self, *, budget_s: float = CALL_S) -> None:
        """Run every statement of the transaction with values that no event can have, and roll it back.

        Raises NotCommitted when anything that an event needs is missing: the connection, the tables, a privilege,
        writes. Safe to cancel.
        """
        event_id = _REHEARSAL + new_id()[len(_REHEARSAL) :]
        scope = {"consumer_name": self._consumer_name, "queue_id": self._queue_id}
        identity = {**scope, "event_id": event_id}

        async def work(transaction: Transaction) -> None:
            await transaction.execute(INSERT_INBOX, {**identity, "event": "", "event_sha256": ""})
            row = {"task_id": event_id, "last_event_id": event_id, "state": ""}
            await transaction.execute(UPSERT_VIEW, {**scope, **row, "task_version": 1, "result": None})
            await transaction.execute(MARK_STALE, identity)
            await transaction.fetch_one(SELECT_RECORDED, identity)

        await self._lane.read(work, budget_s=budget_s)

    async def _record(self, record: Record, deadline: float) -> Verdict | None:
        """Run the transaction; None when the inbox has the event already."""

        async def work(transaction: Transaction) -> Verdict:
            try:
                await transaction.execute(INSERT_INBOX, record.inbox, duplicate_ok=True)
            except DuplicateKey:
                # This statement can only meet the primary key: the table has no other, which start-up checks.
                raise _Recorded from None
            done = await transaction.execute(UPSERT_VIEW, record.view)
            verdict = Verdict(done.lastrowid)
            if verdict is Verdict.STALE:
                await transaction.execute(MARK_STALE, record.identity)
            elif verdict is Verdict.CLASH:
                # Judged against the view's present version only; an older one is stale whatever its event was.
                task_id, version = str(record.view["task_id"]), record.view["task_version"]
                assert isinstance(version, int)
                raise VersionConflict(record.identity["event_id"], task_id, version)
            return verdict

        try:
            return await self._lane.run(work, budget_s=self._left(deadline))
        except _Recorded:
            return None
        except (CommitUnconfirmed, asyncio.CancelledError) as error:
            self._note_unconfirmed(error, record)
            raise

    async def _recorded(self, record: Record, deadline: float) -> tuple[str, int] | None:
        """Read the committed row in a transaction of its own: the failed INSERT's locks are gone by then."""

        async def work(transaction: Transaction) -> tuple[Any, ...] | None:
            return await transaction.fetch_one(SELECT_RECORDED, record.identity)

        row = await self._lane.read(work, budget_s=self._left(deadline))
        return None if row is None else (row[0], row[1])

    def _note_unconfirmed(self, error: BaseException, record: Record) -> None:
        # The lane raises a cancellation that met an unanswered COMMIT from its CommitUnconfirmed.
        unconfirmed = error if isinstance(error, CommitUnconfirmed) else error.__cause__
        if not isinstance(unconfirmed, CommitUnconfirmed):
            return
        self.unconfirmed += 1
        _log.warning(
            "commit unconfirmed",
            event_id=record.identity["event_id"],
            task_id=record.view["task_id"],
            errno=unconfirmed.errno,
            connection_id=unconfirmed.connection_id,
        )

    @staticmethod
    def _left(deadline: float) -> float:
        return deadline - asyncio.get_running_loop().time()

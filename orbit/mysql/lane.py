"""A lane: one worker's own connection, and the only commit in this project.

`run` returns if and only if the OK packet of COMMIT was read. Before COMMIT every failure ends in NotCommitted, after
a ROLLBACK in bounded time or with the connection dropped. From the moment COMMIT is handed to the socket every other
ending (error packet, lost connection, timeout, cancellation) is CommitUnconfirmed, whatever the error number: the
stage decides. The connection is then dropped and never used again.

A transaction of n statements takes n + 1 round trips: autocommit=0 opens it with the first statement. The lane never
pings, and never reconnects while a transaction is open: an answer from a new session would be an OK for nothing. For
the same reason COMMIT is sent only while the server's own flag says that a transaction is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from orbit.mysql.connect import Dialer
from orbit.mysql.driver import Connection, errno_of
from orbit.mysql.errors import (
    BUDGET_SPENT,
    CommitUnconfirmed,
    DatabaseError,
    DuplicateKey,
    Kind,
    NotCommitted,
    Stage,
    StatementFailed,
    classify,
)
from orbit.mysql.statement import Statement, statement_of
from orbit.mysql.times import DEFAULT_TIMES, LaneTimes
from orbit.mysql.transaction import Transaction

if TYPE_CHECKING:
    from sqlalchemy.sql.base import Executable

    from orbit.mysql.dsn import DSN

T = TypeVar("T")


class Outcome(StrEnum):
    """How a call of `run` ended, as far as the database is concerned."""

    COMMITTED = "committed"
    NOT_COMMITTED = "not_committed"
    UNCONFIRMED = "unconfirmed"


@dataclass(slots=True)
class Tally:
    """What lanes did so far: calls of `run` by outcome, connections opened and dropped."""

    committed: int = 0
    not_committed: int = 0
    unconfirmed: int = 0
    opened: int = 0
    dropped: int = 0


class Lane:
    """One connection, one call at a time; opens lazily and again after a drop. Close it when done.

    `last_outcome` is the outcome of the last `run` (None while one is under way and after a `read`), also when that
    ended in a CancelledError. A cancellation that met an unanswered COMMIT is raised `from` its CommitUnconfirmed:
    see `errors.unconfirmed_behind`.
    """

    def __init__(
        self, dsn: DSN, times: LaneTimes = DEFAULT_TIMES, *, name: str = "lane", tally: Tally | None = None
    ) -> None:
        self._times = times
        self._dialer = Dialer(dsn, times, name=name)
        self._connection: Connection | None = None
        self._used_at = 0.0
        self._busy = False
        self._closed = False
        self.name = name
        self.tally = Tally() if tally is None else tally
        self.stage = Stage.OPENING
        self.last_outcome: Outcome | None = None

    async def run(self, work: Callable[[Transaction], Awaitable[T]], *, budget_s: float) -> T:
        """Run `work` in a transaction at READ COMMITTED and commit it; give what it returned.

        The budget spans connecting, the work and COMMIT; cleaning up may add `times.cleanup_s`. An exception of the
        work's own, and DuplicateKey, pass on unchanged after the rollback, so a verdict may be raised.

        Raises NotCommitted, CommitUnconfirmed. Safe to cancel: see `last_outcome`.
        """
        deadline = self._claim(budget_s)
        try:
            transaction = await self._begin(deadline)
            value = await self._perform(transaction, work, deadline)
            await self._commit(transaction, deadline)
        except BaseException:
            self._settle_unless_handed_over()
            raise
        finally:
            self._release()
        return value

    async def read(self, work: Callable[[Transaction], Awaitable[T]], *, budget_s: float) -> T:
        """Run `work` and roll back whatever it did; each statement sees what is committed when it starts.

        Raises NotCommitted, or what the work raised. Safe to cancel.
        """
        deadline = self._claim(budget_s)
        try:
            transaction = await self._begin(deadline)
            value = await self._perform(transaction, work, deadline)
            await self._roll_back(transaction)
        finally:
            self._release()
        return value

    async def define(self, statement: Statement | Executable, *, budget_s: float) -> None:
        """Run one DDL statement, which MySQL commits by itself.

        Raises NotCommitted where the server refused it before doing anything (no privilege, no such or already such a
        table, not SQL) and CommitUnconfirmed for every other ending but its OK packet. Safe to cancel as `run` is.
        """
        deadline = self._claim(budget_s)
        try:
            connection = await self._ready(deadline)
            sql = statement_of(statement).sql()
            await self._hand_over(connection, lambda: connection.send(sql), deadline, refusals=_REFUSALS_OF_DDL)
        except BaseException:
            self._settle_unless_handed_over()
            raise
        finally:
            self._release()

    async def open(self) -> None:
        """Connect now, for a start-up that wants to know. Raises NotCommitted. Safe to cancel."""
        deadline = self._claim(self._dialer.patience_s)
        try:
            await self._ready(deadline)
        finally:
            self._release()

    async def close(self) -> None:
        """End the connection for good, within `times.cleanup_s`. Safe to call twice and to cancel."""
        if self._busy:
            raise RuntimeError("the lane is in use")
        self._closed = True
        await self._leave()

    def discard(self) -> None:
        """End the connection for good and at once, for an owner that cannot wait."""
        self._closed = True
        self._drop()

    def _claim(self, budget_s: float) -> float:
        if self._closed:
            raise RuntimeError("the lane is closed")
        if self._busy:
            raise RuntimeError("a lane makes one call at a time")
        self._busy = True
        self.last_outcome = None
        self.stage = Stage.OPENING
        return asyncio.get_running_loop().time() + budget_s

    def _release(self) -> None:
        self._busy = False
        self._used_at = asyncio.get_running_loop().time()

    async def _ready(self, deadline: float) -> Connection:
        now = asyncio.get_running_loop().time()
        if now >= deadline:
            raise NotCommitted(None, Kind.RETRY, Stage.OPENING, BUDGET_SPENT)
        if self._connection is not None and self._connection.lost:
            self._drop()
        if self._connection is not None and now - self._used_at > self._times.idle_s:
            await self._leave()
        if self._connection is None:
            self._connection = await self._dialer.dial(deadline)
            self.tally.opened += 1
        return self._connection

    async def _begin(self, deadline: float) -> Transaction:
        connection = await self._ready(deadline)
        self.stage = Stage.WORKING
        return Transaction(connection, self._times.statement_s)

    async def _perform(
        self, transaction: Transaction, work: Callable[[Transaction], Awaitable[T]], deadline: float
    ) -> T:
        error: BaseException | None = None
        try:
            async with asyncio.timeout_at(deadline) as limit:
                value = await work(transaction)
        except BaseException as caught:  # noqa: BLE001 - raised again below, after the rollback
            error = caught
        finally:
            transaction.end()
        if error is None and transaction.failure is None:
            return value
        if isinstance(error, Exception | asyncio.CancelledError | None):
            await self._roll_back(transaction)
        else:
            # KeyboardInterrupt, SystemExit, GeneratorExit: no time to talk to anybody.
            self._drop()
        raise _verdict(error, transaction.failure, expired=limit.expired())

    async def _roll_back(self, transaction: Transaction) -> None:
        connection = self._connection
        if connection is None or transaction.statements == 0:
            return
        error: BaseException | None = None
        try:
            async with asyncio.timeout(self._times.cleanup_s):
                await connection.rollback()
        except BaseException as caught:  # noqa: BLE001 - raised again below unless it only says that the link is gone
            error = caught
        if error is not None or connection.in_transaction:
            self._drop()
        if error is not None and not isinstance(error, Exception):
            raise error

    async def _commit(self, transaction: Transaction, deadline: float) -> None:
        connection = self._connection
        now = asyncio.get_running_loop().time()
        if connection is None or connection.lost:
            self._drop()
            raise NotCommitted(None, Kind.RECONNECT, Stage.WORKING, "the connection was lost before COMMIT")
        if not connection.in_transaction:
            self._drop()
            raise NotCommitted(None, Kind.DEFECT, Stage.WORKING, "no transaction was open at COMMIT")
        if now >= deadline:
            await self._roll_back(transaction)
            raise NotCommitted(None, Kind.RETRY, Stage.WORKING, BUDGET_SPENT)
        await self._hand_over(
            connection, connection.commit, min(deadline, now + self._times.commit_s), refusals=frozenset()
        )

    async def _hand_over(
        self,
        connection: Connection,
        send: Callable[[], Awaitable[object]],
        deadline: float,
        *,
        refusals: frozenset[Kind],
    ) -> None:
        """Send what commits. Only its OK packet lets this return; `refusals` are errors that prove nothing was done."""
        self.stage = Stage.COMMITTING
        error: BaseException | None = None
        try:
            async with asyncio.timeout_at(deadline):
                await send()
        except BaseException as caught:  # noqa: BLE001 - its meaning is raised below, and itself if it must pass on
            error = caught
        if error is None:
            self.stage = Stage.COMMITTED
            self._settle(Outcome.COMMITTED)
            return
        self._drop()
        errno = errno_of(error)
        if errno is not None and classify(Stage.WORKING, errno) in refusals:
            self._settle(Outcome.NOT_COMMITTED)
            raise NotCommitted(errno, classify(Stage.WORKING, errno), Stage.WORKING)
        self._settle(Outcome.UNCONFIRMED)
        unconfirmed = CommitUnconfirmed(errno, connection.connection_id)
        if isinstance(error, Exception):
            raise unconfirmed
        raise error from unconfirmed

    def _settle(self, outcome: Outcome) -> None:
        self.last_outcome = outcome
        match outcome:
            case Outcome.COMMITTED:
                self.tally.committed += 1
            case Outcome.NOT_COMMITTED:
                self.tally.not_committed += 1
            case Outcome.UNCONFIRMED:
                self.tally.unconfirmed += 1

    def _settle_unless_handed_over(self) -> None:
        if self.stage in {Stage.OPENING, Stage.WORKING}:
            self._settle(Outcome.NOT_COMMITTED)

    async def _leave(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.leave(self._times.cleanup_s)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.drop()
            self.tally.dropped += 1


_REFUSALS_OF_DDL = frozenset({Kind.DATA, Kind.DEFECT, Kind.CONFIGURATION})


def _verdict(error: BaseException | None, failure: DatabaseError | None, *, expired: bool) -> BaseException:
    """Say how a transaction that will not be committed ends: with `error` itself unless a statement was its cause."""
    if expired and isinstance(error, TimeoutError):
        kind = Kind.RETRY if failure is None else failure.kind
        return NotCommitted(None, kind, Stage.WORKING, BUDGET_SPENT)
    cause = failure if error is None else error
    if isinstance(cause, StatementFailed) or (error is None and isinstance(cause, DuplicateKey)):
        return NotCommitted(cause.errno, cause.kind, Stage.WORKING, cause.reason)
    assert error is not None
    return error

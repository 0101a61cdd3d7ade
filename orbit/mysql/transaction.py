"""The inside of one transaction: statements, and the memory of whether one of them failed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from orbit.mysql.driver import Connection, Result, errno_of
from orbit.mysql.errors import (
    DatabaseError,
    DuplicateKey,
    Kind,
    Stage,
    StatementFailed,
    classify,
    keeps_connection,
)
from orbit.mysql.literals import Unsendable
from orbit.mysql.statement import Parameter, Statement, statement_of

if TYPE_CHECKING:
    from sqlalchemy.sql.base import Executable

_NO_PARAMETERS: Final[Mapping[str, Parameter]] = MappingProxyType({})


def _unnumbered(error: BaseException, errno: int | None) -> str:
    """Name the class of an exception without a number: often a defect of ours or of the driver's."""
    return type(error).__name__ if errno is None else ""


class Done(NamedTuple):
    """What an INSERT, UPDATE or DELETE did.

    `rowcount`: an UPDATE counts the rows that matched (CLIENT.FOUND_ROWS); the count of an upsert tells nothing.
    `lastrowid`: LAST_INSERT_ID of this statement as the OK packet brought it.
    """

    rowcount: int
    lastrowid: int


class Transaction:
    """What `Lane.run` and `Lane.read` hand to the work; unusable as soon as the work has ended.

    One statement at a time. Any failed statement dooms the transaction: MySQL keeps it open after most errors (1205
    undoes the statement alone) and opens a new one behind your back after others (1213), so going on would commit half
    of it. Further statements are refused without being sent, and `run` rolls back even if the work caught the error.
    """

    def __init__(self, connection: Connection, statement_s: float) -> None:
        self._connection = connection
        self._statement_s = statement_s
        self._began = False
        self._sending = False
        self._ended = False
        self.failure: DatabaseError | None = None
        self.statements = 0

    @property
    def connection_id(self) -> int:
        """Give the server's thread id of this connection."""
        return self._connection.connection_id

    async def execute(
        self,
        statement: Statement | Executable,
        parameters: Mapping[str, Parameter] = _NO_PARAMETERS,
        *,
        duplicate_ok: bool = False,
    ) -> Done:
        """Run a statement that changes something.

        Raises DuplicateKey (only with duplicate_ok), StatementFailed, TypeError for parameters that do not fit. A
        cancellation closes the connection, which rolls back.
        """
        result = await self._send(statement, parameters, duplicate_ok=duplicate_ok)
        return Done(result.affected_rows, result.insert_id)

    async def fetch(
        self, statement: Statement | Executable, parameters: Mapping[str, Parameter] = _NO_PARAMETERS
    ) -> list[tuple[Any, ...]]:
        """Run a query and read all its rows; raises and cancels as `execute` does."""
        result = await self._send(statement, parameters, duplicate_ok=False)
        return list(result.rows or ())

    async def fetch_one(
        self, statement: Statement | Executable, parameters: Mapping[str, Parameter] = _NO_PARAMETERS
    ) -> tuple[Any, ...] | None:
        """Run a query for at most one row: raises LookupError if there are more, else as `execute` does."""
        rows = await self.fetch(statement, parameters)
        if len(rows) > 1:
            raise LookupError("a query for one row found several")
        return rows[0] if rows else None

    def end(self) -> None:
        """Refuse further statements; the lane calls this when the work has ended.

        A statement that a task of the work left running would mix its answer with COMMIT's: the connection is dropped.
        """
        self._ended = True
        if self._sending:
            self._connection.drop()
            self._doom(StatementFailed(None, Kind.DEFECT, "the work ended before its statement"))

    async def _send(
        self, statement: Statement | Executable, parameters: Mapping[str, Parameter], *, duplicate_ok: bool
    ) -> Result:
        if self._ended:
            raise RuntimeError("the transaction has ended")
        if self._sending:
            raise RuntimeError("a transaction runs one statement at a time")
        if self.failure is not None:
            raise StatementFailed(self.failure.errno, self.failure.kind, "an earlier statement failed")
        sql = self._sql(statement, parameters)
        self.statements += 1
        error: BaseException | None = None
        self._sending = True
        try:
            async with asyncio.timeout(self._statement_s):
                result = await self._connection.send(sql)
        except BaseException as caught:  # noqa: BLE001 - judged and raised below, outside, so that it is nobody's context
            error = caught
        finally:
            self._sending = False
        if error is not None:
            raise self._doomed_by(error, duplicate_ok=duplicate_ok)
        self._check(result)
        return result

    def _sql(self, statement: Statement | Executable, parameters: Mapping[str, Parameter]) -> bytes:
        if not self._connection.lost and not self._connection.doubles_quotes:
            # A literal written for the other mode could be made to say anything.
            raise self._doom(StatementFailed(None, Kind.DEFECT, "the session left NO_BACKSLASH_ESCAPES"))
        reason: str | None = None
        try:
            sql = statement_of(statement).sql(parameters)
        except Unsendable as unsendable:
            reason = str(unsendable)
        if reason is not None:
            raise self._doom(StatementFailed(None, Kind.DATA, reason))
        return sql

    def _doomed_by(self, error: BaseException, *, duplicate_ok: bool) -> BaseException:
        errno = errno_of(error)
        if not keeps_connection(errno):
            self._connection.drop()
        if duplicate_ok and errno == 1062:
            return self._doom(DuplicateKey())
        reason = "no answer in time" if isinstance(error, TimeoutError) else _unnumbered(error, errno)
        failure = self._doom(StatementFailed(errno, classify(Stage.WORKING, errno), reason))
        # A cancellation passes on as itself, and so do KeyboardInterrupt and its like.
        return failure if isinstance(error, Exception) else error

    def _check(self, result: Result) -> None:
        if result.has_next:
            self._connection.drop()
            raise self._doom(StatementFailed(None, Kind.DEFECT, "the statement had several results"))
        if self._connection.in_transaction:
            self._began = True
        elif self._began:
            # DDL and its like commit by themselves; what ran before is in the database and nobody can take it back.
            raise self._doom(StatementFailed(None, Kind.DEFECT, "the statement ended the transaction by itself"))

    def _doom(self, failure: DatabaseError) -> DatabaseError:
        if self.failure is None:
            self.failure = failure
        return failure

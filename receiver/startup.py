"""Before the first event: is this a server that keeps what it confirms, and are these the receiver's tables?

What the run-time account cannot see is a trigger (MySQL shows those to accounts with the TRIGGER privilege alone). A
trigger that raised a duplicate key of its own would not be taken for a known event all the same: `Store` reads the
recorded row before it says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbit.mysql.checks import Problem, Requirements, judge, read_facts
from orbit.mysql.shape import TableShape, expected_shape, judge_shape, read_tables
from receiver.schema import TABLES

if TYPE_CHECKING:
    from orbit.mysql.lane import Lane
    from orbit.mysql.transaction import Transaction

CALL_S: Final = 10.0

EXPECTED: Final = {table.name: expected_shape(table) for table in TABLES}


class StartupRefused(Exception):
    """The server or the tables are not fit; names each setting or column, what it is and what is needed."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "; ".join(str(problem) for problem in self.problems)


async def check_database(lane: Lane) -> None:
    """Raise StartupRefused unless server and tables are as they must be; NotCommitted when it cannot be asked."""
    problems = await lane.read(_problems, budget_s=CALL_S)
    if problems:
        raise StartupRefused(problems)


async def _problems(transaction: Transaction) -> list[Problem]:
    facts = await read_facts(transaction)
    found: dict[str, TableShape] = await read_tables(transaction, EXPECTED)
    return [*judge(facts, Requirements()), *judge_shape(EXPECTED, found)]

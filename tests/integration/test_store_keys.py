"""Identities are bytes: nothing folds case, strips blanks or normalises on any key column, and lookups use the key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orbit.mysql.statement import Statement
from receiver import statements
from receiver.outcome import Applied
from receiver.record import record_of
from tests.support.events import QUEUE, an_event, an_id
from tests.support.receiver import NAME, Bench, bench

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.mysql import ReceiverDSNs

LOOK_ALIKES = ("ab", "AB", "aB", "ab ", " ab", "áb", "a\u0301b", "ａb", "ab\x00", "ab\u200b", "ab\t", "ß", "ss")
INBOX_KEY = ("consumer_name", "queue_id", "event_id")
VIEW_KEY = ("consumer_name", "queue_id", "task_id")


@pytest.fixture
async def receiver(receiver_dsns: ReceiverDSNs) -> AsyncIterator[Bench]:
    async with bench(receiver_dsns) as made:
        yield made


def inbox_insert(receiver: Bench, key: dict[str, str]) -> None:
    receiver.sql(
        "INSERT INTO receiver_inbox (consumer_name, queue_id, event_id, event, event_sha256, applied, accepted_at)"
        " VALUES (%s, %s, %s, '{}', '', 1, UTC_TIMESTAMP(6))",
        *(key[name] for name in INBOX_KEY),
    )


def view_insert(receiver: Bench, key: dict[str, str]) -> None:
    receiver.sql(
        "INSERT INTO receiver_task_views (consumer_name, queue_id, task_id, task_version, last_event_id, state,"
        " applied_events, created_at, updated_at)"
        " VALUES (%s, %s, %s, 1, '', '', 1, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))",
        *(key[name] for name in VIEW_KEY),
    )


@pytest.mark.parametrize(
    ("table", "column"),
    [("receiver_inbox", name) for name in INBOX_KEY] + [("receiver_task_views", name) for name in VIEW_KEY],
)
async def test_look_alikes_are_different_keys(receiver: Bench, table: str, column: str) -> None:
    names, insert = (INBOX_KEY, inbox_insert) if table == "receiver_inbox" else (VIEW_KEY, view_insert)
    for value in LOOK_ALIKES:
        insert(receiver, {**dict.fromkeys(names, "x"), column: value})
    for value in LOOK_ALIKES:
        found = receiver.sql(f"SELECT {column} AS found FROM {table} WHERE {column} = %s", value)
        assert found == [{"found": value}]


async def test_receiver_names_that_differ_in_case_are_different_consumers(receiver: Bench) -> None:
    for name in ("view", "View", "VIEW"):
        assert await receiver.store(consumer_name=name).apply(an_event(1)) == Applied(applied=True, duplicate=False)
    assert {row["consumer_name"] for row in receiver.inbox()} == {"view", "View", "VIEW"}
    assert [view["applied_events"] for view in receiver.views()] == [1, 1, 1]


@pytest.mark.parametrize("name", ["MARK_STALE", "SELECT_RECORDED", "SELECT_VIEW"])
async def test_each_lookup_reaches_one_row_by_the_primary_key(receiver: Bench, name: str) -> None:
    # An INSERT has no plan to explain; the primary key is the only one that it could meet.
    store = receiver.store()
    for number in range(50):
        await store.apply(an_event(number, task_id=an_id(number, kind="c")))
    receiver.sql("ANALYZE TABLE receiver_inbox, receiver_task_views")
    statement: Statement = getattr(statements, name)
    record = record_of(an_event(1, task_id=an_id(1, kind="c")), consumer_name=NAME, queue_id=QUEUE)
    given: dict[str, str | int | None] = {**record.identity, **record.view}
    explain = Statement(f"EXPLAIN FORMAT=TRADITIONAL {statement.text}", statement.names)
    values = {column: given[column] for column in statement.names}
    lane = receiver.lane(receiver.dsns.admin)
    (plan,) = await lane.read(lambda tx: tx.fetch(explain, values), budget_s=10)
    access, key, rows = plan[4], plan[6], plan[9]
    assert (key, rows) == ("PRIMARY", 1)
    assert access in {"const", "range"}

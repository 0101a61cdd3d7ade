"""The ledger: one transaction for a task's row, its event and the deliveries; and how its queries read."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from orbit.mysql.pool import LanePool
from orbit.mysql.statement import Statement
from orbit.protocol.errors import ApiError, ErrorCode
from orbit.protocol.event import Event
from orbit.protocol.http_v1 import EventType, TaskState
from orbit.protocol.values import new_id, parse_time
from orbit.sandbox import PLATFORM_PRIVILEGES
from orbit.server import ledger
from orbit.server.decide.task import Change
from orbit.server.ledger import Ledger, TaskRow
from orbit.server.migrate import migrate
from orbit.server.services import access, operations, queues, subscriptions, tasks
from tests.support.lanes import closing
from tests.support.rows import rows, sql

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orbit.mysql.transaction import Transaction
    from orbit.sandbox import MySQLServer
    from tests.support.platform import Api, Node

BUDGET_S = 10.0
LARGE = '"' + "ä" * (125 * 1024) + '"'


async def write(node: Node, queue_id: str, task_id: str, *changes: Change) -> tuple[list[TaskRow], frozenset[str]]:
    """Write changes of one task, one transaction each; the rows in between, and whom the last one woke."""
    written: list[TaskRow] = []
    woken: frozenset[str] = frozenset()
    for change in changes:

        async def work(tx: Transaction, change: Change = change) -> tuple[TaskRow, frozenset[str]]:
            book = await Ledger.open(tx, queue_id)
            row = await book.lock_task(task_id)
            assert row is not None
            return await book.write(row, change), book.woken

        row, woken = await node.platform.pool.run(work, budget_s=BUDGET_S)
        written.append(row)
    return written, woken


LIVES = [
    Change(state=TaskState.LEASED, event_type=EventType.LEASED),
    Change(state=TaskState.RUNNING, event_type=EventType.STARTED),
    Change(state=TaskState.WAITING, event_type=EventType.REQUEUED, effect_uncertain=True),
    Change(
        state=TaskState.NEEDS_REVIEW,
        event_type=EventType.NEEDS_REVIEW,
        error_code="UNKNOWN_EFFECT",
        effect_uncertain=True,
    ),
    Change(state=TaskState.FAILED, event_type=EventType.FAILED, error_code="REJECTED", result=LARGE),
    Change(state=TaskState.SUCCEEDED, event_type=EventType.SUCCEEDED, result='{"n":18446744073709551617.10}'),
]


@pytest.mark.parametrize("change", LIVES, ids=lambda change: change.event_type.value)
async def test_every_kind_of_change_is_a_version_an_event_and_a_delivery(api: Api, node: Node, change: Change) -> None:
    subscription_id = (await api.subscribe(event_types=[change.event_type.value])).json()["subscription_id"]
    task_id = (await api.submit()).json()["task"]["task_id"]

    [row], woken = await write(node, api.queue_id, task_id, change)

    assert woken == {f"subscription:{subscription_id}"}
    [(text,)] = await rows(node, "SELECT event FROM events WHERE task_id = :id AND task_version = 2", id=task_id)
    event = Event.parse(text.encode())
    assert event.text == text
    assert (event.event_type, event.state, event.task_version) == (change.event_type.value, change.state.value, 2)
    assert (event.result, event.error_code, event.effect_uncertain) == (
        change.result,
        change.error_code,
        change.effect_uncertain is True,
    )
    assert await rows(node, "SELECT COUNT(*) FROM deliveries WHERE subscription_id = :id", id=subscription_id) == [(1,)]
    shown = await api.http.get(f"/v1/tasks/{task_id}")
    assert shown.json()["state"] == change.state.value
    assert ("completed_at" in shown.json()) is (change.state in {TaskState.SUCCEEDED, TaskState.FAILED})
    assert ("available_at" in shown.json()) is (change.state is TaskState.WAITING)
    if change.result is not None:
        assert f'"result":{change.result}' in shown.text
    assert row["version"] == 2


async def test_the_row_that_the_ledger_gives_is_the_row_in_the_database(api: Api, node: Node) -> None:
    task_id = (await api.submit(latest_start_at="2030-01-01T00:00:00Z")).json()["task"]["task_id"]

    written, _ = await write(node, api.queue_id, task_id, *LIVES)

    [stored] = await rows(node, "SELECT * FROM tasks WHERE task_id = :id", id=task_id)
    assert tuple(written[-1].values()) == stored
    versions = await rows(node, "SELECT task_version FROM events WHERE task_id = :id ORDER BY 1", id=task_id)
    assert versions == [(number,) for number in range(1, len(LIVES) + 2)]


async def test_the_times_of_a_tasks_versions_do_not_go_back(api: Api, node: Node) -> None:
    task = (await api.submit()).json()["task"]
    later = parse_time(task["created_at"], "created_at").replace(tzinfo=None) + timedelta(hours=1)
    await rows(node, "UPDATE tasks SET updated_at = :later WHERE task_id = :id", later=later, id=task["task_id"])

    cancelled = (await api.cancel(task["task_id"])).json()

    assert parse_time(cancelled["updated_at"], "updated_at").replace(tzinfo=None) == later
    [(text,)] = await rows(
        node, "SELECT event FROM events WHERE task_id = :id AND task_version = 2", id=task["task_id"]
    )
    assert json.loads(text)["occurred_at"] == cancelled["updated_at"]


async def test_a_transaction_that_ends_badly_leaves_nothing(api: Api, node: Node) -> None:
    await api.subscribe(event_types=["task.cancelled"])
    task_id = (await api.submit()).json()["task"]["task_id"]

    class ChangeOfMind(Exception):
        pass

    async def work(tx: Transaction) -> None:
        book = await Ledger.open(tx, api.queue_id)
        row = await book.lock_task(task_id)
        assert row is not None
        await book.write(row, Change(state=TaskState.CANCELLED, event_type=EventType.CANCELLED))
        raise ChangeOfMind

    with pytest.raises(ChangeOfMind):
        await node.platform.pool.run(work, budget_s=BUDGET_S)

    assert await rows(node, "SELECT state, version FROM tasks WHERE task_id = :id", id=task_id) == [("WAITING", 1)]
    assert await rows(node, "SELECT COUNT(*) FROM events WHERE task_id = :id", id=task_id) == [(1,)]
    assert await rows(
        node,
        "SELECT COUNT(*) FROM deliveries JOIN subscriptions USING (subscription_id) WHERE queue_id = :id",
        id=api.queue_id,
    ) == [(0,)]


async def test_a_row_that_was_not_locked_is_not_written(api: Api, node: Node) -> None:
    task_id = (await api.submit()).json()["task"]["task_id"]
    change = Change(state=TaskState.CANCELLED, event_type=EventType.CANCELLED)

    async def work(tx: Transaction) -> None:
        book = await Ledger.open(tx, api.queue_id)
        row = await book.lock_task(task_id)
        assert row is not None
        await book.write(row | {"version": 7}, change)

    with pytest.raises(RuntimeError, match="without its lock"):
        await node.platform.pool.run(work, budget_s=BUDGET_S)


async def test_there_is_no_ledger_of_a_queue_that_is_not_there(node: Node) -> None:
    async def work(tx: Transaction) -> None:
        await Ledger.open(tx, new_id())

    with pytest.raises(ApiError) as caught:
        await node.platform.pool.run(work, budget_s=BUDGET_S)
    assert caught.value.code is ErrorCode.NOT_FOUND


FILL = [
    "INSERT INTO namespaces SELECT LPAD(i, 32, 'a'), CONCAT('n', i), UTC_TIMESTAMP(6) FROM numbers WHERE i < 50",
    (
        "INSERT INTO queues (queue_id, namespace_id, environment, name, created_at)"
        " SELECT LPAD(i, 32, 'a'), LPAD(i MOD 50, 32, 'a'), 'test', CONCAT('q', i),"
        " UTC_TIMESTAMP(6) FROM numbers"
    ),
    (
        "INSERT INTO credentials SELECT LPAD(i, 32, 'a'), REPEAT('a', 32), LPAD(i MOD 50, 32, 'a'), LPAD(i, 32, 'a'),"
        " SHA2(i, 256), 'tasks:read', UTC_TIMESTAMP(6), NULL FROM numbers"
    ),
    (
        "INSERT INTO subscriptions SELECT LPAD(i, 32, 'a'), LPAD(i MOD 50, 32, 'a'), REPEAT('a', 32), LPAD(i, 32, 'a'),"
        " 'task.cancelled', 1, 64, 10, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) FROM numbers"
    ),
    (
        "INSERT INTO operations SELECT LPAD(i MOD 50, 32, 'a'), REPEAT('a', 32), 'tasks.submit', CONCAT('k', i),"
        " SHA2(i, 256), LPAD(i, 32, 'a'), UTC_TIMESTAMP(6) FROM numbers"
    ),
]


@pytest.fixture(scope="module")
async def filled(mysql: MySQLServer) -> AsyncIterator[LanePool]:
    """A platform database with a thousand rows of everything that is looked up."""
    database = mysql.create_database("plans")
    dsn = mysql.create_account(database, PLATFORM_PRIVILEGES)
    migrate(dsn)
    numbers = "WITH RECURSIVE numbers (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM numbers WHERE i < 999) "

    async def fill(tx: Transaction) -> None:
        for statement in FILL:
            head, _, tail = statement.partition(" SELECT ")
            await tx.execute(sql(f"{head} {numbers} SELECT {tail}"))

    async def analyze(tx: Transaction) -> None:
        await tx.fetch(sql("ANALYZE TABLE namespaces, queues, credentials, subscriptions, operations"))

    async with closing(LanePool(dsn, 1, name="plans")) as pool:
        await pool.run(fill, budget_s=BUDGET_S)
        await pool.read(analyze, budget_s=BUDGET_S)
        yield pool
    mysql.drop_database(database)


ID = "a" * 32
NAMESPACE = "a" * 31 + "1"
PLANS: list[tuple[str, Statement, dict[str, Any], dict[str, tuple[str, int]]]] = [
    ("authenticate", access._CREDENTIAL, {"digest": "0" * 64}, {"credentials": ("uq_credentials_token", 1)}),
    ("look for a queue", access._QUEUE_EXISTS, {"queue_id": ID, "namespace_id": ID}, {"queues": ("PRIMARY", 1)}),
    ("read a queue", queues._QUEUE, {"queue_id": ID}, {"queues": ("PRIMARY", 1), "namespaces": ("PRIMARY", 1)}),
    ("open a ledger", ledger._LOCK_QUEUE, {"queue_id": ID}, {"queues": ("PRIMARY", 1)}),
    ("subscribers", ledger._SUBSCRIBERS, {"queue_id": ID}, {"subscriptions": ("ix_subscriptions_queue", 2)}),
    ("lock a task", ledger._LOCK_TASK, {"task_id": ID}, {"tasks": ("PRIMARY", 1)}),
    ("read a task", tasks._TASK, {"task_id": ID}, {"tasks": ("PRIMARY", 1)}),
    (
        "read a receipt",
        operations._RECEIPT,
        {"namespace_id": ID, "application_id": ID, "kind": "tasks.submit", "operation_key": "a"},
        {"operations": ("PRIMARY", 1)},
    ),
    ("read a subscription", subscriptions._READ, {"subscription_id": ID}, {"subscriptions": ("PRIMARY", 1)}),
    (
        "count subscriptions",
        subscriptions._COUNT,
        {"namespace_id": NAMESPACE},
        {"subscriptions": ("ix_subscriptions_owner", 64)},
    ),
    (
        "list subscriptions",
        subscriptions._LIST,
        {"namespace_id": NAMESPACE, "application_id": ID, "queue_id": ID},
        {"subscriptions": ("ix_subscriptions_owner ix_subscriptions_queue", 64)},
    ),
]


@pytest.mark.parametrize(("what", "statement", "parameters", "expected"), PLANS, ids=[plan[0] for plan in PLANS])
async def test_a_lookup_reads_by_its_index(
    filled: LanePool,
    what: str,
    statement: Statement,
    parameters: dict[str, Any],
    expected: dict[str, tuple[str, int]],
) -> None:
    explain = Statement(
        "EXPLAIN FORMAT=TRADITIONAL " + statement.text, statement.names, statement.constants, statement.converters
    )

    async def work(tx: Transaction) -> list[tuple[Any, ...]]:
        return await tx.fetch(explain, parameters)

    for row in await filled.read(work, budget_s=BUDGET_S):
        table, key, read, extra = row[2], row[6], row[9], row[11]
        if table is None:
            # A row looked up by a whole primary or unique key is read while planning; here there is none.
            assert extra == "no matching row in const table"
            assert all(index in {"PRIMARY", "uq_credentials_token"} for index, _ in expected.values()), what
            continue
        indexes, at_most = expected[table]
        assert key in indexes.split(" "), what
        assert read <= at_most, what

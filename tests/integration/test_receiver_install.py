"""`init` on a real MySQL: what it makes, what it needs, and what it refuses before any DDL."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.schema import CreateTable

from orbit.mysql.errors import Kind, NotCommitted
from orbit.mysql.statement import DIALECT
from orbit.sandbox import RECEIVER_RUN_PRIVILEGES
from orbit.sandbox.server import admin_cursor
from orbit.server import tables as platform_tables
from receiver.install import InstallRefused, init, refusal
from receiver.schema import PLATFORM_TABLES, TABLES, ddl, schema_sql
from tests.support.events import an_event
from tests.support.mysql import receiver_accounts
from tests.support.receiver import Bench, bench
from tests.support.receiver_process import ReceiverProcess

if TYPE_CHECKING:
    from orbit.mysql.dsn import DSN
    from orbit.sandbox import MySQLServer
    from tests.support.mysql import ReceiverDSNs

COLUMNS = """
    SELECT TABLE_NAME, COLUMN_NAME, ORDINAL_POSITION, COLUMN_DEFAULT, IS_NULLABLE, COLUMN_TYPE, CHARACTER_SET_NAME,
           COLLATION_NAME, COLUMN_KEY, EXTRA
    FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() ORDER BY TABLE_NAME, ORDINAL_POSITION
"""
KEYS = """
    SELECT TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX, COLUMN_NAME, NON_UNIQUE
    FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = DATABASE() ORDER BY 1, 2, 3
"""
OPTIONS = """
    SELECT TABLE_NAME, ENGINE, TABLE_COLLATION FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE()
    ORDER BY TABLE_NAME
"""


def rows(dsn: DSN, text: str) -> list[tuple[Any, ...]]:
    with admin_cursor(dsn) as cursor:
        cursor.execute(text)
        return list(cursor.fetchall())


def tables_of(dsn: DSN) -> set[str]:
    return {row[0] for row in rows(dsn, "SHOW TABLES")}


async def test_init_makes_two_tables_of_seventeen_commented_columns_without_foreign_keys(
    receiver_dsns: ReceiverDSNs,
) -> None:
    assert await init(receiver_dsns.init) == 0
    assert tables_of(receiver_dsns.admin) == {"receiver_inbox", "receiver_task_views"}
    comments = rows(
        receiver_dsns.admin, "SELECT COLUMN_COMMENT FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE()"
    )
    assert len(comments) == 17
    assert all(re.search(r"[\u4e00-\u9fff]{4}", comment) for (comment,) in comments)
    assert len(set(comments)) == 17
    assert rows(
        receiver_dsns.admin,
        "SELECT COUNT(*) FROM information_schema.TABLE_CONSTRAINTS"
        " WHERE TABLE_SCHEMA = DATABASE() AND CONSTRAINT_TYPE = 'FOREIGN KEY'",
    ) == [(0,)]


async def test_the_core_tables_equal_schema_sql(mysql: MySQLServer) -> None:
    written, declared = mysql.create_database("written"), mysql.create_database("declared")
    await init(written.admin)
    with admin_cursor(declared.admin) as cursor:
        for table in TABLES:
            cursor.execute(str(CreateTable(table).compile(dialect=DIALECT)))
    for question in (COLUMNS, KEYS, OPTIONS):
        answer = rows(written.admin, question)
        assert answer
        assert rows(declared.admin, question) == answer
    mysql.drop_database(written)
    mysql.drop_database(declared)


async def test_identifiers_are_compared_as_bytes_and_documents_are_text(receiver_dsns: ReceiverDSNs) -> None:
    await init(receiver_dsns.init)
    columns = {(row[0], row[1]): row for row in rows(receiver_dsns.admin, COLUMNS)}
    for (table, name), row in columns.items():
        column_type, collation = row[5], row[7]
        if name in {"event", "result"}:
            assert column_type == "mediumtext", (table, name)
        elif name in {"applied", "task_version", "applied_events"}:
            assert collation is None, (table, name)
        elif name.endswith("_at"):
            assert column_type == "datetime(6)", (table, name)
        else:
            assert column_type.startswith("varchar("), (table, name)
            assert collation == "utf8mb4_0900_bin", (table, name)
    assert [row[1:4] for row in rows(receiver_dsns.admin, KEYS)] == [
        ("PRIMARY", 1, "consumer_name"),
        ("PRIMARY", 2, "queue_id"),
        ("PRIMARY", 3, "event_id"),
        ("PRIMARY", 1, "consumer_name"),
        ("PRIMARY", 2, "queue_id"),
        ("PRIMARY", 3, "task_id"),
    ]


def test_schema_sql_says_first_where_the_platforms_tables_are_and_holds_two_statements() -> None:
    assert "the platform's tables live elsewhere" in schema_sql().splitlines()[0]
    assert [statement.split(" (")[0] for statement in ddl()] == [
        "CREATE TABLE receiver_inbox",
        "CREATE TABLE receiver_task_views",
    ]


async def test_a_second_init_is_refused_and_changes_nothing(receiver_dsns: ReceiverDSNs) -> None:
    await init(receiver_dsns.init)
    with admin_cursor(receiver_dsns.admin) as cursor:
        cursor.execute("ALTER TABLE receiver_task_views COMMENT 'as it was'")
    with pytest.raises(InstallRefused, match="receiver_inbox exists already"):
        await init(receiver_dsns.init)
    (comment,) = rows(
        receiver_dsns.admin,
        "SELECT TABLE_COMMENT FROM information_schema.TABLES"
        " WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'receiver_task_views'",
    )
    assert comment == ("as it was",)


async def test_of_two_inits_at_once_one_makes_the_tables_and_the_other_is_refused(
    receiver_dsns: ReceiverDSNs, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_have_looked = threading.Barrier(2)

    def ddl_once_both_have_looked() -> tuple[str, ...]:
        both_have_looked.wait(30)
        return ddl()

    def one() -> int | InstallRefused:
        try:
            return asyncio.run(init(receiver_dsns.init))
        except InstallRefused as error:
            return error

    monkeypatch.setattr("receiver.install.ddl", ddl_once_both_have_looked)
    answers = await asyncio.gather(asyncio.to_thread(one), asyncio.to_thread(one))

    (refused,) = [answer for answer in answers if isinstance(answer, InstallRefused)]
    assert 0 in answers
    assert str(refused) == "receiver_inbox exists already; init runs once, in an empty database"
    assert refused.__cause__ is None
    assert tables_of(receiver_dsns.admin) == {"receiver_inbox", "receiver_task_views"}


async def test_the_second_table_alone_is_refused_before_the_first_is_made(receiver_dsns: ReceiverDSNs) -> None:
    with admin_cursor(receiver_dsns.admin) as cursor:
        cursor.execute("CREATE TABLE receiver_task_views (a INT PRIMARY KEY)")
    with pytest.raises(InstallRefused, match="receiver_task_views exists already"):
        await init(receiver_dsns.init)
    assert tables_of(receiver_dsns.admin) == {"receiver_task_views"}


async def test_a_platforms_database_is_refused_before_any_ddl(receiver_dsns: ReceiverDSNs) -> None:
    with admin_cursor(receiver_dsns.admin) as cursor:
        cursor.execute("CREATE TABLE deliveries (a INT PRIMARY KEY)")
    with pytest.raises(InstallRefused, match="holds deliveries, a table of the platform"):
        await init(receiver_dsns.init)
    assert tables_of(receiver_dsns.admin) == {"deliveries"}


def test_every_name_taken_for_a_platforms_table_is_one() -> None:
    assert PLATFORM_TABLES - {"alembic_version"} <= set(platform_tables.metadata.tables)
    assert all(refusal(frozenset({name, "mine"})) is not None for name in PLATFORM_TABLES)
    assert refusal(frozenset({"mine"})) is None


async def test_init_without_create_is_a_matter_of_configuration(receiver_dsns: ReceiverDSNs) -> None:
    with pytest.raises(NotCommitted) as raised:
        await init(receiver_dsns.run)
    assert (raised.value.errno, raised.value.kind) == (1142, Kind.CONFIGURATION)
    assert tables_of(receiver_dsns.admin) == set()


async def test_foreign_keys_on_or_to_the_tables_are_seen_by_an_account_that_may_only_create(
    receiver_dsns: ReceiverDSNs, monkeypatch: pytest.MonkeyPatch
) -> None:
    referring = (
        "CREATE TABLE audit (c VARCHAR(64) COLLATE utf8mb4_0900_bin, q VARCHAR(32) COLLATE utf8mb4_0900_bin,"
        " e VARCHAR(32) COLLATE utf8mb4_0900_bin, FOREIGN KEY (c, q, e) REFERENCES receiver_inbox"
        " (consumer_name, queue_id, event_id))"
    )
    monkeypatch.setattr("receiver.install.ddl", lambda: (*ddl(), referring))
    with admin_cursor(receiver_dsns.admin) as cursor:
        cursor.execute(f"GRANT REFERENCES ON `{receiver_dsns.init.database}`.* TO %s@'%%'", (receiver_dsns.init.user,))
    assert await init(receiver_dsns.init) == 1


@pytest.mark.parametrize(("host", "warnings"), [("127.0.0.1", 0), ("0.0.0.0", 1)])
async def test_a_database_in_plain_text_beyond_loopback_is_warned_of_once(
    receiver_dsns: ReceiverDSNs, host: str, warnings: int
) -> None:
    # 0.0.0.0 leads to this machine as well, but nothing says that it must.
    dsn = receiver_dsns.init.with_host(host, receiver_dsns.init.hosts[0][1])
    async with ReceiverProcess("init", variables={"ORBIT_RECEIVER_DSN": dsn.render()}) as process:
        assert await process.ended() == (0, "receiver_schema_initialized=true foreign_keys=0\n")
    exposed = [line for line in process.log if line["message"] == "database connection exposed"]
    assert [line["level"] for line in exposed] == ["warning"] * warnings


async def test_the_run_time_account_needs_three_privileges_on_two_tables_and_no_more(mysql: MySQLServer) -> None:
    database = mysql.create_database("privileges")
    accounts = receiver_accounts(mysql, database)
    async with bench(accounts) as receiver:
        account = mysql.create_account(database, RECEIVER_RUN_PRIVILEGES)
        with admin_cursor(database.admin) as cursor:
            cursor.execute(f"REVOKE ALL ON `{database.name}`.* FROM %s@'%%'", (account.user,))
            for table in ("receiver_inbox", "receiver_task_views"):
                cursor.execute(f"GRANT SELECT, INSERT, UPDATE ON `{database.name}`.{table} TO %s@'%%'", (account.user,))
        await _use_every_statement(receiver, account)
    mysql.drop_database(database)


async def _use_every_statement(receiver: Bench, account: DSN) -> None:
    store = receiver.store(dsn=account)
    answers = [
        await store.apply(an_event(1, version=2)),
        await store.apply(an_event(2, version=1)),
        await store.apply(an_event(2, version=1)),
    ]
    assert [(answer.applied, answer.duplicate) for answer in answers] == [(True, False), (False, False), (False, True)]

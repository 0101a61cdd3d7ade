"""Migrations: what they add up to, that a run may be repeated wherever it stopped, and who may run at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy.schema import CreateIndex, CreateTable

from orbit.mysql.pool import LanePool
from orbit.mysql.statement import DIALECT
from orbit.sandbox import PLATFORM_PRIVILEGES
from orbit.sandbox.server import admin_cursor
from orbit.server.migrate import (
    MigrationError,
    UnknownSchema,
    alembic_config,
    check_schema,
    head_revision,
    lock_name,
    migrate,
)
from orbit.server.tables import metadata

if TYPE_CHECKING:
    from orbit.mysql.dsn import DSN
    from orbit.sandbox import MySQLServer

# Every ALTER TABLE writes the character sets of a generated column's literals anew, so they are not compared.
SHAPE = {
    "tables": "SELECT table_name, engine, table_collation, row_format, table_comment FROM information_schema.tables"
    " WHERE table_schema = %s AND table_name != 'alembic_version' ORDER BY 1",
    "columns": "SELECT table_name, ordinal_position, column_name, column_type, is_nullable, column_default,"
    " collation_name, extra, REPLACE(REPLACE(generation_expression, '_utf8mb4', ''), '_ascii', ''), column_comment"
    " FROM information_schema.columns"
    " WHERE table_schema = %s AND table_name != 'alembic_version' ORDER BY 1, 2",
    "indexes": "SELECT table_name, index_name, seq_in_index, column_name, non_unique, sub_part, collation, index_type"
    " FROM information_schema.statistics WHERE table_schema = %s AND table_name != 'alembic_version' ORDER BY 1, 2, 3",
    "constraints": "SELECT table_name, constraint_name, constraint_type FROM information_schema.table_constraints"
    " WHERE table_schema = %s AND table_name != 'alembic_version' ORDER BY 1, 2",
}


@contextmanager
def database(mysql: MySQLServer) -> Iterator[DSN]:
    """An empty database and the account that the platform has."""
    made = mysql.create_database("schema")
    yield mysql.create_account(made, PLATFORM_PRIVILEGES)
    mysql.drop_database(made)


@pytest.fixture
def empty_dsn(mysql: MySQLServer) -> Iterator[DSN]:
    """An empty database and the account that the platform has."""
    with database(mysql) as dsn:
        yield dsn


def ask(mysql: MySQLServer, dsn: DSN, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Run a statement in the database as its administrator."""
    with admin_cursor(mysql.admin.with_database(dsn.database)) as cursor:
        cursor.execute(statement, parameters or None)
        return list(cursor.fetchall())


def shape(mysql: MySQLServer, dsn: DSN) -> dict[str, list[tuple[Any, ...]]]:
    """Everything that information_schema says about the platform's tables."""
    return {what: ask(mysql, dsn, statement, dsn.database) for what, statement in SHAPE.items()}


def revisions() -> list[str]:
    """All revisions, first to last."""
    scripts = ScriptDirectory.from_config(alembic_config())
    return [script.revision for script in reversed(list(scripts.walk_revisions()))]


def test_the_migrations_add_up_to_the_tables_that_queries_are_made_from(mysql: MySQLServer, empty_dsn: DSN) -> None:
    migrate(empty_dsn)
    with database(mysql) as drawn:
        for table in metadata.sorted_tables:
            ask(mysql, drawn, str(CreateTable(table).compile(dialect=DIALECT)))
            for index in table.indexes:
                ask(mysql, drawn, str(CreateIndex(index).compile(dialect=DIALECT)))

        found, wanted = shape(mysql, empty_dsn), shape(mysql, drawn)

    assert len(wanted["tables"]) == 16
    for what, rows in wanted.items():
        assert found[what] == rows, what


def test_there_are_no_foreign_keys(mysql: MySQLServer, empty_dsn: DSN) -> None:
    migrate(empty_dsn)

    kinds = {kind for _, _, kind in shape(mysql, empty_dsn)["constraints"]}
    assert kinds == {"PRIMARY KEY", "UNIQUE"}


def test_every_revision_is_one_statement() -> None:
    scripts = ScriptDirectory.from_config(alembic_config())
    for script in scripts.walk_revisions():
        source = Path(script.path).read_text()
        assert source.count("op.") == 1, script.path
        assert ";" not in source, script.path


@pytest.mark.parametrize("stopped_before_noting", revisions())
def test_a_run_that_stopped_between_statement_and_note_is_repeated(
    mysql: MySQLServer, empty_dsn: DSN, stopped_before_noting: str
) -> None:
    migrate(empty_dsn, revision=stopped_before_noting)
    earlier = revisions()[: revisions().index(stopped_before_noting)]
    if earlier:
        ask(mysql, empty_dsn, "UPDATE alembic_version SET version_num = %s", earlier[-1])
    else:
        ask(mysql, empty_dsn, "DELETE FROM alembic_version")

    migrate(empty_dsn)

    assert ask(mysql, empty_dsn, "SELECT version_num FROM alembic_version") == [(head_revision(),)]
    assert len(shape(mysql, empty_dsn)["tables"]) == 16


def test_running_again_keeps_what_is_there(mysql: MySQLServer, empty_dsn: DSN) -> None:
    migrate(empty_dsn)
    ask(mysql, empty_dsn, "INSERT INTO namespaces VALUES (%s, 'mine', UTC_TIMESTAMP(6))", "a" * 32)

    migrate(empty_dsn.render())

    assert ask(mysql, empty_dsn, "SELECT name FROM namespaces") == [("mine",)]


def test_two_runs_at_once_both_end_well(mysql: MySQLServer, empty_dsn: DSN) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            migrate(empty_dsn)
        except BaseException as error:  # noqa: BLE001 - a thread's failure is the test's
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert failures == []
    assert ask(mysql, empty_dsn, "SELECT version_num FROM alembic_version") == [(head_revision(),)]


def test_a_run_waits_for_another_one_only_so_long(mysql: MySQLServer, empty_dsn: DSN) -> None:
    with admin_cursor(mysql.admin) as cursor:
        cursor.execute("SELECT GET_LOCK(%s, 0)", (lock_name(empty_dsn),))

        with pytest.raises(MigrationError, match="another migration"):
            migrate(empty_dsn, lock_timeout_s=0)

    assert shape(mysql, empty_dsn)["tables"] == []
    migrate(empty_dsn, lock_timeout_s=10)


def test_databases_side_by_side_do_not_wait_for_each_other(mysql: MySQLServer, empty_dsn: DSN) -> None:
    with database(mysql) as other, admin_cursor(mysql.admin) as cursor:
        cursor.execute("SELECT GET_LOCK(%s, 0)", (lock_name(other),))
        migrate(empty_dsn, lock_timeout_s=0)

    assert len(shape(mysql, empty_dsn)["tables"]) == 16


def test_a_schema_of_another_version_is_left_alone(mysql: MySQLServer, empty_dsn: DSN) -> None:
    migrate(empty_dsn)
    ask(mysql, empty_dsn, "UPDATE alembic_version SET version_num = '9999'")

    with pytest.raises(MigrationError, match="another version"):
        migrate(empty_dsn)

    assert ask(mysql, empty_dsn, "SELECT version_num FROM alembic_version") == [("9999",)]


def test_a_refusal_says_the_number_and_neither_password_nor_text(empty_dsn: DSN) -> None:
    wrong = empty_dsn.with_account(empty_dsn.user, "my-secret")

    with pytest.raises(MigrationError) as caught:
        migrate(wrong)

    assert "1045" in str(caught.value)
    assert "my-secret" not in str(caught.value)
    assert empty_dsn.user not in str(caught.value)


@pytest.mark.parametrize("state", ["empty", "older", "newer", "known"])
async def test_a_server_serves_the_schema_that_it_knows_and_no_other(
    mysql: MySQLServer, empty_dsn: DSN, state: str
) -> None:
    if state != "empty":
        await asyncio.to_thread(migrate, empty_dsn)
    if state in {"older", "newer"}:
        version = revisions()[-2] if state == "older" else "9999"
        ask(mysql, empty_dsn, "UPDATE alembic_version SET version_num = %s", version)
    pool = LanePool(empty_dsn, 1, name="check")
    try:
        if state == "known":
            await check_schema(pool)
        else:
            with pytest.raises(UnknownSchema, match=f"needs {head_revision()}"):
                await check_schema(pool)
    finally:
        await pool.close()

"""Judging what a server and its tables say about themselves, without either."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Boolean, Column, Index, Integer, MetaData, String, Table
from sqlalchemy.dialects.mysql import BIGINT, DATETIME, JSON, MEDIUMTEXT, TINYINT, VARBINARY

from orbit.mysql.checks import Requirements, ServerFacts, judge
from orbit.mysql.shape import ColumnShape, TableShape, expected_shape, judge_shape

GOOD = ServerFacts(
    version="8.4.3",
    version_comment="MySQL Community Server - GPL",
    sql_mode=frozenset({"STRICT_TRANS_TABLES", "NO_ZERO_DATE"}),
    innodb_flush_log_at_trx_commit=1,
    log_bin=True,
    sync_binlog=1,
    binlog_error_action="ABORT_SERVER",
    max_allowed_packet=4_194_304,
    read_only=False,
    super_read_only=False,
)


def _judged(facts: ServerFacts, requirements: Requirements | None = None) -> list[str]:
    return [str(problem) for problem in judge(facts, requirements or Requirements())]


def test_a_good_server_has_no_problem() -> None:
    assert _judged(GOOD) == []


@pytest.mark.parametrize("version", ["8.4.0", "9.7.4-2", "10.0.1", "8.4.3-cluster"])
def test_versions_from_8_4_on_are_taken(version: str) -> None:
    assert _judged(replace(GOOD, version=version)) == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"version": "8.0.44"}, "version is 8.0.44, needed: MySQL 8.4 or newer"),
        ({"version": "5.7.44-log"}, "version is 5.7.44-log, needed: MySQL 8.4 or newer"),
        ({"version": "unknown"}, "version is unknown, needed: MySQL 8.4 or newer"),
        (
            {"version": "11.8.2-MariaDB"},
            "version is 11.8.2-MariaDB, needed: MySQL 8.4 or newer; MariaDB is another product",
        ),
        (
            {"version": "11.8.2", "version_comment": "mariadb.org binary"},
            "version is 11.8.2, needed: MySQL 8.4 or newer; MariaDB is another product",
        ),
        ({"sql_mode": frozenset()}, "sql_mode is empty, needed: STRICT_TRANS_TABLES in it"),
        ({"sql_mode": frozenset({"B", "A"})}, "sql_mode is A,B, needed: STRICT_TRANS_TABLES in it"),
        ({"innodb_flush_log_at_trx_commit": 2}, "innodb_flush_log_at_trx_commit is 2, needed: 1"),
        ({"innodb_flush_log_at_trx_commit": 0}, "innodb_flush_log_at_trx_commit is 0, needed: 1"),
        ({"sync_binlog": 0}, "sync_binlog is 0, needed: 1"),
        ({"sync_binlog": 100}, "sync_binlog is 100, needed: 1"),
        ({"binlog_error_action": "IGNORE_ERROR"}, "binlog_error_action is IGNORE_ERROR, needed: ABORT_SERVER"),
        ({"max_allowed_packet": 4_194_303}, "max_allowed_packet is 4194303, needed: at least 4194304"),
        ({"read_only": True}, "read_only is ON, needed: OFF"),
        ({"read_only": True, "super_read_only": True}, "super_read_only is ON, needed: OFF"),
    ],
)
def test_one_wrong_setting_is_named(changes: dict[str, Any], problem: str) -> None:
    assert _judged(replace(GOOD, **changes)) == [problem]


@pytest.mark.parametrize(
    "changes",
    [
        {"sql_mode": frozenset({"STRICT_ALL_TABLES"})},
        {"log_bin": False, "sync_binlog": 0, "binlog_error_action": "IGNORE_ERROR"},
    ],
)
def test_settings_that_do_no_harm_are_taken(changes: dict[str, Any]) -> None:
    assert _judged(replace(GOOD, **changes)) == []


def test_all_problems_are_named_at_once() -> None:
    facts = replace(GOOD, version="8.0.1", sync_binlog=0, max_allowed_packet=1024)
    assert [line.split()[0] for line in _judged(facts)] == ["version", "sync_binlog", "max_allowed_packet"]


def test_a_reader_does_not_mind_a_read_only_server() -> None:
    assert _judged(replace(GOOD, read_only=True, super_read_only=True), Requirements(takes_writes=False)) == []


TABLE = TableShape(
    engine="InnoDB",
    columns={
        "id": ColumnShape("varchar(32)", nullable=False, collation="utf8mb4_0900_bin"),
        "n": ColumnShape("bigint unsigned", nullable=True, collation=None),
    },
    primary_key=("id",),
)


def _differs(**changes: Any) -> list[str]:
    return [str(problem) for problem in judge_shape({"t": TABLE}, {"t": replace(TABLE, **changes)})]


def _column(name: str, **changes: Any) -> dict[str, ColumnShape]:
    return {**TABLE.columns, name: replace(TABLE.columns[name], **changes)}


def test_the_same_shape_has_no_problem() -> None:
    assert _differs() == []
    assert _differs(engine="INNODB") == []
    assert _differs(columns=dict(sorted(TABLE.columns.items(), reverse=True))) == []


def test_an_absent_table_is_named() -> None:
    assert [str(problem) for problem in judge_shape({"t": TABLE}, {})] == ["t is absent, needed: a table"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"engine": "MyISAM"}, "t engine is MyISAM, needed: InnoDB"),
        ({"columns": {"id": TABLE.columns["id"]}}, "t.n is absent, needed: present"),
        ({"columns": {**TABLE.columns, "x": TABLE.columns["n"]}}, "t.x is present, needed: absent"),
        ({"columns": _column("id", type="varchar(64)")}, "t.id type is varchar(64), needed: varchar(32)"),
        ({"columns": _column("id", nullable=True)}, "t.id null is allowed, needed: not allowed"),
        ({"columns": _column("n", nullable=False)}, "t.n null is not allowed, needed: allowed"),
        (
            {"columns": _column("id", collation="utf8mb4_0900_ai_ci")},
            "t.id collation is utf8mb4_0900_ai_ci, needed: utf8mb4_0900_bin",
        ),
        ({"primary_key": ()}, "t primary key is (), needed: (id)"),
        ({"primary_key": ("id(16)",)}, "t primary key is (id(16)), needed: (id)"),
        ({"unique_keys": frozenset({("n",)})}, "t unique key is (n), needed: none such"),
        ({"foreign_keys": frozenset({"fk"})}, "t foreign key is fk, needed: none"),
        ({"triggers": frozenset({"tr"})}, "t trigger is tr, needed: none"),
    ],
)
def test_one_difference_is_named(changes: dict[str, Any], problem: str) -> None:
    assert _differs(**changes) == [problem]


def test_an_expected_unique_key_must_be_there() -> None:
    expected = replace(TABLE, unique_keys=frozenset({("n", "id")}))
    assert [str(problem) for problem in judge_shape({"t": expected}, {"t": TABLE})] == [
        "t unique key is absent, needed: (n, id)"
    ]


def test_the_expected_shape_is_derived_from_core() -> None:
    table = Table(
        "t",
        MetaData(),
        Column("id", String(32), primary_key=True),
        Column("word", String(8, collation="ascii_bin"), nullable=False),
        Column("body", MEDIUMTEXT(), nullable=True),
        Column("raw", VARBINARY(32), nullable=False),
        Column("n", BIGINT(unsigned=True), nullable=False),
        Column("i", Integer, nullable=False),
        Column("flag", Boolean, nullable=False),
        Column("tiny", TINYINT(1), nullable=False),
        Column("at", DATETIME(fsp=6), nullable=False),
        Column("doc", JSON, nullable=True),
        Index("plain", "n"),
        Index("one", "n", "i", unique=True),
        mysql_collate="utf8mb4_0900_bin",
    )
    assert expected_shape(table) == TableShape(
        engine="InnoDB",
        columns={
            "id": ColumnShape("varchar(32)", nullable=False, collation="utf8mb4_0900_bin"),
            "word": ColumnShape("varchar(8)", nullable=False, collation="ascii_bin"),
            "body": ColumnShape("mediumtext", nullable=True, collation="utf8mb4_0900_bin"),
            "raw": ColumnShape("varbinary(32)", nullable=False, collation=None),
            "n": ColumnShape("bigint unsigned", nullable=False, collation=None),
            "i": ColumnShape("int", nullable=False, collation=None),
            "flag": ColumnShape("tinyint(1)", nullable=False, collation=None),
            "tiny": ColumnShape("tinyint(1)", nullable=False, collation=None),
            "at": ColumnShape("datetime(6)", nullable=False, collation=None),
            "doc": ColumnShape("json", nullable=True, collation=None),
        },
        primary_key=("id",),
        unique_keys=frozenset({("n", "i")}),
    )

"""Core statements become text and names; values are put in later."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from sqlalchemy import Boolean, Column, MetaData, String, Table, bindparam, select, text, update
from sqlalchemy.dialects.mysql import BIGINT, insert
from sqlalchemy.exc import StatementError
from sqlalchemy.schema import CreateTable

from orbit.mysql import statement as module
from orbit.mysql.literals import Unsendable
from orbit.mysql.statement import Statement, compile_statement, statement_of

table = Table(
    "t",
    MetaData(),
    Column("id", String(64, collation="utf8mb4_0900_bin"), primary_key=True, comment="100% 'x' \\"),
    Column("v", BIGINT(unsigned=True)),
    Column("on", Boolean),
)


def _words(sql: bytes) -> str:
    return " ".join(sql.decode().split())


def test_names_follow_the_order_of_the_text() -> None:
    statement = compile_statement(
        update(table).values(v=bindparam("new")).where(table.c.id == bindparam("key"), table.c.v < bindparam("new"))
    )
    assert statement.names == ("new", "key", "new")
    assert _words(statement.sql({"key": "it's", "new": 7})) == "UPDATE t SET v=7 WHERE t.id = 'it''s' AND t.v < 7"


def test_an_upsert_names_the_new_row_instead_of_the_deprecated_values() -> None:
    upsert = insert(table).values(id=bindparam("id"), v=bindparam("v"))
    statement = compile_statement(upsert.on_duplicate_key_update(v=upsert.inserted.v))
    assert _words(statement.sql({"id": "a", "v": 1})) == (
        "INSERT INTO t (id, v) VALUES ('a', 1) AS new ON DUPLICATE KEY UPDATE v = new.v"
    )


def test_values_fixed_in_the_statement_are_constants_that_a_call_may_override() -> None:
    statement = compile_statement(select(table.c.id).where(table.c.v == 5, table.c.id == bindparam("id")))
    assert _words(statement.sql({"id": "a"})).endswith("WHERE t.v = 5 AND t.id = 'a'")
    assert _words(statement.sql({"id": "a", "v_1": 6})).endswith("WHERE t.v = 6 AND t.id = 'a'")


def test_locking_reads_keep_their_words() -> None:
    statement = compile_statement(select(table.c.id).with_for_update(skip_locked=True, of=table))
    assert _words(statement.sql()) == "SELECT t.id FROM t FOR UPDATE OF t SKIP LOCKED"
    assert _words(compile_statement(select(table.c.id).with_for_update(read=True)).sql()) == (
        "SELECT t.id FROM t FOR SHARE"
    )


def test_a_list_fills_an_in_clause() -> None:
    statement = compile_statement(select(table.c.v).where(table.c.id.in_(bindparam("ids", expanding=True))))
    assert _words(statement.sql({"ids": ["a", "b'"]})) == "SELECT t.v FROM t WHERE t.id IN ('a', 'b''')"
    assert _words(statement.sql({"ids": ("a",)})) == "SELECT t.v FROM t WHERE t.id IN ('a')"
    fixed = compile_statement(select(table.c.v).where(table.c.id.in_(["x", "y"])))
    assert _words(fixed.sql()) == "SELECT t.v FROM t WHERE t.id IN ('x', 'y')"


def test_an_empty_list_is_refused_since_no_sql_says_it() -> None:
    statement = compile_statement(select(table.c.v).where(table.c.id.in_(bindparam("ids", expanding=True))))
    with pytest.raises(TypeError, match="ids is an empty list"):
        statement.sql({"ids": []})


def test_percent_signs_and_backslashes_stay_what_they_are() -> None:
    statement = compile_statement(select(table.c.v).where(table.c.id.like("a%b\\"), text("'%' = '%s'")))
    assert _words(statement.sql()) == r"SELECT t.v FROM t WHERE t.id LIKE 'a%b\' AND '%' = '%s'"
    assert r"COMMENT '100% ''x'' \'" in _words(compile_statement(CreateTable(table)).sql())


def test_a_value_that_looks_like_a_placeholder_stays_a_value() -> None:
    statement = Statement("SELECT %s, %s", ("a", "b"))
    assert statement.sql({"a": "%s", "b": "%(b)s"}) == b"SELECT '%s', '%(b)s'"


def test_column_types_check_what_goes_in() -> None:
    statement = compile_statement(insert(table).values(id="a", on=bindparam("on")))
    assert _words(statement.sql({"on": True})) == "INSERT INTO t (id, `on`) VALUES ('a', 1)"
    with pytest.raises((TypeError, ValueError, StatementError)):
        statement.sql({"on": "yes"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"missing \['a', 'b'\], unknown \[\]"),
        ({"a": 1}, r"missing \['b'\], unknown \[\]"),
        ({"a": 1, "b": 2, "c": 3}, r"missing \[\], unknown \['c'\]"),
        ({"a": 1, "c": 3}, r"missing \['b'\], unknown \['c'\]"),
    ],
)
def test_parameters_must_be_those_of_the_statement(given: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Statement("SELECT %s, %s, %s", ("a", "b", "a")).sql(given)


def test_a_value_that_cannot_be_sent_is_reported_as_such() -> None:
    with pytest.raises(Unsendable):
        Statement("SELECT %s", ("a",)).sql({"a": "\ud800"})


def test_constants_and_values_are_in_no_repr() -> None:
    statement = compile_statement(select(table.c.id).where(table.c.id == "canary"))
    assert "canary" not in repr(statement)


def test_a_core_statement_is_compiled_once_and_forgotten_with_its_object() -> None:
    query = select(table.c.id)
    compiled = statement_of(query)
    assert statement_of(query) is compiled
    assert statement_of(compiled) is compiled
    before = len(module._COMPILED)
    del query
    gc.collect()
    assert len(module._COMPILED) == before - 1

"""What the fault proxy makes of a statement's text. The forms that commit were tried on a real MySQL."""

from __future__ import annotations

import pytest

from toxiproxy.sql import Effect, read

V9 = 90704

COMMITS = [
    "COMMIT",
    "commit",
    "CoMmIt",
    "  COMMIT",
    "\n\t COMMIT\r\n",
    "/* x */COMMIT",
    "/* x */ /**/ COMMIT /* y */",
    "/*+ hint */ COMMIT",
    "-- c\nCOMMIT",
    "--\tc\nCOMMIT",
    "# c\nCOMMIT",
    "/*!COMMIT*/",
    "/*! COMMIT */",
    "/*!80000 COMMIT */",
    "/*!080000 COMMIT */",
    "/*!99999 x */COMMIT",
    "/*!99999 x /* y */ z */COMMIT",
    "/*!999999 ROLLBACK; */COMMIT",
    "COMMIT;",
    "COMMIT ; ",
    "COMMIT;-- x",
    "COMMIT;;",
    ";COMMIT",
    "COMMIT WORK",
    "COMMIT AND CHAIN",
    "COMMIT AND NO CHAIN",
    "COMMIT RELEASE",
    "COMMIT/**/WORK",
    "COMMIT -- 'x",
]


@pytest.mark.parametrize("text", COMMITS)
def test_each_way_to_write_commit_is_recognised(text: str) -> None:
    statements = read(text.encode(), server_version=V9)
    assert statements.name == "COMMIT"
    assert statements.effects == (Effect.COMMIT,)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("PREPARE s FROM 'COMMIT'", "PREPARE"),
        ("SELECT 'COMMIT'", "SELECT"),
        ("SAVEPOINT commit_a", "SAVEPOINT"),
        ("SAVEPOINT COMMIT", "SAVEPOINT"),
        ("/*!99999 COMMIT */", "EMPTY"),
        ("/*!999999 COMMIT */ SELECT 1", "SELECT"),
        ("-- COMMIT", "EMPTY"),
        ("# COMMIT", "EMPTY"),
        ("--COMMIT", "OTHER"),
        ("/* COMMIT", "EMPTY"),
        ("'x' COMMIT", "OTHER"),
        ("COMMITTED", "OTHER"),
        ("COMMIT_A", "OTHER"),
        ("COMMIT$", "OTHER"),
        ("COMMITÉ", "OTHER"),
        ("XA COMMIT 'x'", "XA"),
        ("INSERT INTO t VALUES ('a;COMMIT')", "INSERT"),
        ("INSERT INTO t VALUES ('it''s;COMMIT')", "INSERT"),
        (r"INSERT INTO t VALUES ('a\';COMMIT')", "INSERT"),
        ('INSERT INTO t VALUES ("a\\";COMMIT")', "INSERT"),
        ("INSERT INTO `a;COMMIT` VALUES (1)", "INSERT"),
        ("INSERT INTO `a``;COMMIT` VALUES (1)", "INSERT"),
        ("CALL commit_it()", "CALL"),
        ("EXECUTE s", "EXECUTE"),
        ("SET autocommit=1", "SET"),
        ("CREATE TABLE x (a INT)", "CREATE"),
        ("ANALYZE TABLE t", "ANALYZE"),
        ("ROLLBACK TO SAVEPOINT a", "ROLLBACK TO"),
        ("ROLLBACK WORK TO a", "ROLLBACK TO"),
        ("", "EMPTY"),
        (" ; ; ", "EMPTY"),
        ("(SELECT 1)", "OTHER"),
    ],
)
def test_what_only_looks_like_commit_is_not(text: str, name: str) -> None:
    statements = read(text.encode(), server_version=V9)
    assert statements.name == name
    assert statements.effects == (Effect.OTHER,)


@pytest.mark.parametrize(
    "text", ["ROLLBACK", "rollback work", "ROLLBACK;-- COMMIT", "/*!ROLLBACK*/", "ROLLBACK AND CHAIN"]
)
def test_rollback_is_recognised(text: str) -> None:
    statements = read(text.encode(), server_version=V9)
    assert statements.name == "ROLLBACK"
    assert statements.effects == (Effect.ROLLBACK,)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("BEGIN", "BEGIN"),
        ("begin work", "BEGIN"),
        ("START TRANSACTION", "BEGIN"),
        ("start\n/* x */ transaction READ ONLY", "BEGIN"),
        ("LOCK TABLES t WRITE", "LOCK TABLES"),
        ("LOCK TABLE t READ", "LOCK TABLES"),
    ],
)
def test_what_commits_and_stays_in_a_transaction_is_named(text: str, name: str) -> None:
    statements = read(text.encode(), server_version=V9)
    assert statements.name == name
    assert statements.effects == (Effect.RESTART,)


def test_several_statements_keep_their_effects_in_order() -> None:
    statements = read(b"insert into t values (1);COMMIT; begin", server_version=V9)
    assert statements.name == "MULTI"
    assert statements.effects == (Effect.OTHER, Effect.COMMIT, Effect.RESTART)


def test_an_executable_comment_counts_by_the_servers_version() -> None:
    text = b"/*!90705 COMMIT*/"
    assert read(text, server_version=90704).effects == (Effect.OTHER,)
    assert read(text, server_version=90705).effects == (Effect.COMMIT,)


@pytest.mark.parametrize(
    ("text", "effects"),
    [
        (b"/*!100000 COMMIT*/", (Effect.OTHER,)),
        (b"/*!100000\nCOMMIT*/", (Effect.OTHER,)),
        (b"/*!100000;COMMIT*/", (Effect.OTHER, Effect.COMMIT)),
        (b"/*!90704COMMIT*/", (Effect.COMMIT,)),
    ],
)
def test_six_digits_are_a_version_only_before_a_blank(text: bytes, effects: tuple[Effect, ...]) -> None:
    assert read(text, server_version=V9).effects == effects


def test_a_semicolon_inside_an_executable_comment_divides() -> None:
    assert read(b"/*! COMMIT; */ SELECT 1", server_version=V9).effects == (Effect.COMMIT, Effect.OTHER)


def test_backslashes_are_ordinary_when_the_session_says_so() -> None:
    text = rb"INSERT INTO t VALUES ('a\'); COMMIT; -- ')"
    assert read(text, server_version=V9).effects == (Effect.OTHER,)
    assert read(text, server_version=V9, backslash_escapes=False).effects == (Effect.OTHER, Effect.COMMIT)


def test_a_text_of_another_character_set_is_read() -> None:
    assert read(b"COMMIT -- \xff\xfe", server_version=V9).effects == (Effect.COMMIT,)


def test_nothing_of_the_text_is_in_the_name() -> None:
    assert read(b"secret_function()", server_version=V9).name == "OTHER"

"""The table over (stage, errno), a row each, written down from the reference and not from the code."""

from __future__ import annotations

import asyncio
import pickle

import pytest

from orbit.mysql.errors import (
    TABLE,
    CommitUnconfirmed,
    DatabaseError,
    DuplicateKey,
    Kind,
    NotCommitted,
    Stage,
    StatementFailed,
    classify,
    keeps_connection,
    unconfirmed_behind,
)

_RETRY, _RECONNECT, _BACK_OFF = Kind.RETRY, Kind.RECONNECT, Kind.BACK_OFF
_DATA, _DEFECT, _CONFIGURATION = Kind.DATA, Kind.DEFECT, Kind.CONFIGURATION

OPENING = {
    1040: _BACK_OFF,
    1043: _RECONNECT,
    1044: _CONFIGURATION,
    1045: _CONFIGURATION,
    1049: _CONFIGURATION,
    1053: _RECONNECT,
    1129: _BACK_OFF,
    1130: _CONFIGURATION,
    1158: _RECONNECT,
    1159: _RECONNECT,
    1160: _RECONNECT,
    1161: _RECONNECT,
    1193: _CONFIGURATION,
    1203: _BACK_OFF,
    1226: _BACK_OFF,
    1251: _CONFIGURATION,
    1273: _CONFIGURATION,
    1290: _RECONNECT,
    1862: _CONFIGURATION,
    2003: _RECONNECT,
    2013: _RECONNECT,
    2026: _CONFIGURATION,
    2059: _CONFIGURATION,
    3032: _RECONNECT,
    3118: _CONFIGURATION,
    3159: _CONFIGURATION,
}
# errno: (kind, the connection is still good for a ROLLBACK)
WORKING = {
    1020: (_RETRY, True),
    1021: (_BACK_OFF, True),
    1030: (_BACK_OFF, True),
    1037: (_BACK_OFF, True),
    1038: (_BACK_OFF, True),
    1039: (_BACK_OFF, True),
    1040: (_BACK_OFF, True),
    1041: (_BACK_OFF, True),
    1044: (_CONFIGURATION, True),
    1045: (_CONFIGURATION, True),
    1048: (_DATA, True),
    1049: (_CONFIGURATION, True),
    1050: (_DEFECT, True),
    1053: (_RECONNECT, False),
    1054: (_DEFECT, True),
    1062: (_DATA, True),
    1064: (_DEFECT, True),
    1114: (_BACK_OFF, True),
    1118: (_DATA, True),
    1136: (_DEFECT, True),
    1142: (_CONFIGURATION, True),
    1143: (_CONFIGURATION, True),
    1146: (_DEFECT, True),
    1153: (_CONFIGURATION, False),
    1197: (_BACK_OFF, True),
    1205: (_RETRY, True),
    1206: (_RETRY, True),
    1213: (_RETRY, True),
    1227: (_CONFIGURATION, True),
    1264: (_DATA, True),
    1265: (_DATA, True),
    1290: (_RECONNECT, False),
    1292: (_DATA, True),
    1317: (_RETRY, True),
    1364: (_DATA, True),
    1366: (_DATA, True),
    1406: (_DATA, True),
    1412: (_RETRY, True),
    1441: (_DATA, True),
    1792: (_CONFIGURATION, True),
    1836: (_RECONNECT, False),
    1927: (_RECONNECT, False),
    2006: (_RECONNECT, False),
    2013: (_RECONNECT, False),
    2014: (_RECONNECT, False),
    2055: (_RECONNECT, False),
    3024: (_RETRY, True),
    3032: (_RECONNECT, False),
    3140: (_DATA, True),
    3150: (_DATA, True),
    3157: (_DATA, True),
    3168: (_RECONNECT, False),
    3169: (_RECONNECT, False),
    3572: (_RETRY, True),
    3819: (_DATA, True),
    3854: (_DATA, True),
    4031: (_RECONNECT, False),
}


@pytest.mark.parametrize(("errno", "kind"), OPENING.items())
def test_opening(errno: int, kind: Kind) -> None:
    assert classify(Stage.OPENING, errno) is kind


@pytest.mark.parametrize(("errno", "kind", "kept"), [(errno, *row) for errno, row in WORKING.items()])
def test_working(errno: int, kind: Kind, kept: bool) -> None:
    assert classify(Stage.WORKING, errno) is kind
    assert keeps_connection(errno) is kept


@pytest.mark.parametrize("errno", sorted({*OPENING, *WORKING, 1180, 1598, 3101, 9999}))
def test_committing_proves_nothing_whatever_the_number(errno: int) -> None:
    assert classify(Stage.COMMITTING, errno) is Kind.UNCONFIRMED


def test_every_row_of_the_table_is_tested() -> None:
    assert set(TABLE[Stage.OPENING]) == set(OPENING)
    assert set(TABLE[Stage.WORKING]) == set(WORKING)
    assert not TABLE[Stage.COMMITTING]


@pytest.mark.parametrize("stage", [Stage.OPENING, Stage.WORKING])
@pytest.mark.parametrize(
    ("errno", "kind"), [(None, _RECONNECT), (2999, _RECONNECT), (1999, _BACK_OFF), (5000, _BACK_OFF)]
)
def test_other_numbers(stage: Stage, errno: int | None, kind: Kind) -> None:
    assert classify(stage, errno) is kind


def test_no_number_at_commit_is_unconfirmed_too() -> None:
    assert classify(Stage.COMMITTING, None) is Kind.UNCONFIRMED


def test_nothing_fails_after_the_confirmation() -> None:
    with pytest.raises(ValueError, match="after COMMIT was confirmed"):
        classify(Stage.COMMITTED, 2013)


def test_a_connection_without_a_number_to_its_failure_is_not_kept() -> None:
    assert not keeps_connection(None)
    assert not keeps_connection(2999)
    assert keeps_connection(1999)


def test_kinds_that_pass_by_themselves() -> None:
    assert {kind for kind in Kind if kind.passes} == {_RETRY, _RECONNECT, _BACK_OFF}


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (StatementFailed(1213, _RETRY), "StatementFailed errno=1213 kind=retry"),
        (DuplicateKey(), "DuplicateKey errno=1062 kind=data"),
        (
            NotCommitted(None, _RECONNECT, Stage.OPENING, "connection refused"),
            "NotCommitted errno=None kind=reconnect stage=opening (connection refused)",
        ),
        (CommitUnconfirmed(2013, 42), "CommitUnconfirmed errno=2013 kind=unconfirmed connection=42"),
    ],
)
def test_an_error_says_class_number_kind_and_survives_pickling(error: DatabaseError, text: str) -> None:
    assert str(error) == text
    assert str(pickle.loads(pickle.dumps(error))) == text


async def test_an_unconfirmed_commit_is_found_behind_what_had_to_pass_on() -> None:
    unconfirmed = CommitUnconfirmed(None, 7)

    async def cancelled_in_commit() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as cancelled:
            raise cancelled from unconfirmed

    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(0):
            await cancelled_in_commit()
    assert unconfirmed_behind(caught.value) is unconfirmed
    assert unconfirmed_behind(unconfirmed) is unconfirmed
    assert unconfirmed_behind(NotCommitted(None, _RETRY, Stage.WORKING)) is None

"""Are these the tables that the program was written for? Read their shape, then compare it without the database.

It matters beyond tidiness: "1062 from this INSERT means that the event was seen" holds only while the primary key is
the only unique key and no trigger inserts anything else, and "the same identifier" only under a collation that neither
folds case nor pads blanks.

information_schema shows an account the columns and keys of every table it may use, but triggers only with the
TRIGGER privilege. An account without it sees none, whether there are any or not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.types import String

from orbit.mysql.checks import Problem
from orbit.mysql.statement import DIALECT, Statement

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from sqlalchemy import Column, Table

    from orbit.mysql.transaction import Transaction

_SERVER_NAMES: Final = {"bool": "tinyint(1)", "integer": "int", "numeric": "decimal"}


@dataclass(frozen=True, slots=True)
class ColumnShape:
    """One column as information_schema describes it; `type` in the server's lower case, `collation` of text only."""

    type: str
    nullable: bool
    collation: str | None


@dataclass(frozen=True, slots=True)
class TableShape:
    """One table. Keys are column names in order; keys that are not unique do not matter here."""

    engine: str
    columns: Mapping[str, ColumnShape]
    primary_key: tuple[str, ...]
    unique_keys: frozenset[tuple[str, ...]] = frozenset()
    foreign_keys: frozenset[str] = frozenset()
    triggers: frozenset[str] = frozenset()


_NAMES: Final = ("names",)
_TABLES: Final = Statement(
    "SELECT TABLE_NAME, ENGINE FROM information_schema.TABLES"
    " WHERE TABLE_SCHEMA = DATABASE() AND TABLE_TYPE = 'BASE TABLE' AND TABLE_NAME IN (%s)",
    _NAMES,
)
_COLUMNS: Final = Statement(
    "SELECT TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, COLLATION_NAME FROM information_schema.COLUMNS"
    " WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN (%s) ORDER BY TABLE_NAME, ORDINAL_POSITION",
    _NAMES,
)
_UNIQUE_KEYS: Final = Statement(
    "SELECT TABLE_NAME, INDEX_NAME, COALESCE(COLUMN_NAME, EXPRESSION), SUB_PART FROM information_schema.STATISTICS"
    " WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN (%s) AND NON_UNIQUE = 0"
    " ORDER BY TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX",
    _NAMES,
)
_FOREIGN_KEYS: Final = Statement(
    "SELECT TABLE_NAME, CONSTRAINT_NAME FROM information_schema.REFERENTIAL_CONSTRAINTS"
    " WHERE CONSTRAINT_SCHEMA = DATABASE() AND TABLE_NAME IN (%s)",
    _NAMES,
)
_TRIGGERS: Final = Statement(
    "SELECT EVENT_OBJECT_TABLE, TRIGGER_NAME FROM information_schema.TRIGGERS"
    " WHERE EVENT_OBJECT_SCHEMA = DATABASE() AND EVENT_OBJECT_TABLE IN (%s)",
    _NAMES,
)


async def read_tables(transaction: Transaction, names: Collection[str]) -> dict[str, TableShape]:
    """Read the shapes of these tables of the current database; absent ones are left out. Raises StatementFailed."""
    wanted = {"names": list(names)}
    engines = await transaction.fetch(_TABLES, wanted)
    columns = await transaction.fetch(_COLUMNS, wanted)
    keys = await transaction.fetch(_UNIQUE_KEYS, wanted)
    foreign_keys = await transaction.fetch(_FOREIGN_KEYS, wanted)
    triggers = await transaction.fetch(_TRIGGERS, wanted)
    shapes = {}
    for name, engine in engines:
        unique = _keys(row for row in keys if row[0] == name)
        shapes[name] = TableShape(
            engine=engine,
            columns={row[1]: ColumnShape(row[2], row[3] == "YES", row[4]) for row in columns if row[0] == name},
            primary_key=unique.pop("PRIMARY", ()),
            unique_keys=frozenset(unique.values()),
            foreign_keys=frozenset(row[1] for row in foreign_keys if row[0] == name),
            triggers=frozenset(row[1] for row in triggers if row[0] == name),
        )
    return shapes


def _keys(rows: Iterable[tuple[Any, ...]]) -> dict[str, tuple[str, ...]]:
    keys: dict[str, tuple[str, ...]] = {}
    for _, index, part, length in rows:
        # A key over the first characters only is not the key it seems to be.
        keys[index] = (*keys.get(index, ()), part if length is None else f"{part}({length})")
    return keys


def expected_shape(table: Table) -> TableShape:
    """Derive from a Core table what the database must show; pure.

    A text column without a collation of its own has the table's (mysql_collate).
    """
    from_table = table.kwargs.get("mysql_collate")
    return TableShape(
        engine=str(table.kwargs.get("mysql_engine", "InnoDB")),
        columns={column.name: _expected_column(column, from_table) for column in table.columns},
        primary_key=tuple(column.name for column in table.primary_key.columns),
        unique_keys=frozenset(
            tuple(column.name for column in index.columns) for index in table.indexes if index.unique
        ),
    )


def _expected_column(column: Column[Any], from_table: str | None) -> ColumnShape:
    text = re.sub(r" (CHARACTER SET|COLLATE) \w+", "", column.type.compile(DIALECT)).lower()
    word = re.match(r"\w+", text)
    if word is not None and word[0] in _SERVER_NAMES:
        text = _SERVER_NAMES[word[0]] + text[word.end() :]
    collation = (column.type.collation or from_table) if isinstance(column.type, String) else None
    return ColumnShape(text, bool(column.nullable), collation)


def judge_shape(expected: Mapping[str, TableShape], found: Mapping[str, TableShape]) -> list[Problem]:
    """Name everything in which the tables differ from the expected ones; pure."""
    problems: list[Problem] = []
    for name, table in expected.items():
        if name not in found:
            problems.append(Problem(name, "absent", "a table"))
        else:
            problems.extend(_differences(name, table, found[name]))
    return problems


def _differences(name: str, expected: TableShape, found: TableShape) -> list[Problem]:
    problems = []
    if found.engine.lower() != expected.engine.lower():
        problems.append(Problem(f"{name} engine", found.engine, expected.engine))
    for column in {**expected.columns, **found.columns}:
        have, need = found.columns.get(column), expected.columns.get(column)
        if have is None or need is None:
            problems.append(Problem(f"{name}.{column}", _presence(have), _presence(need)))
        else:
            problems.extend(_column_differences(f"{name}.{column}", need, have))
    if found.primary_key != expected.primary_key:
        problems.append(Problem(f"{name} primary key", _key(found.primary_key), _key(expected.primary_key)))
    unexpected, missing = found.unique_keys - expected.unique_keys, expected.unique_keys - found.unique_keys
    problems += [Problem(f"{name} unique key", _key(key), "none such") for key in sorted(unexpected)]
    problems += [Problem(f"{name} unique key", "absent", _key(key)) for key in sorted(missing)]
    problems += [Problem(f"{name} foreign key", key, "none") for key in sorted(found.foreign_keys)]
    problems += [Problem(f"{name} trigger", trigger, "none") for trigger in sorted(found.triggers)]
    return problems


def _column_differences(where: str, need: ColumnShape, have: ColumnShape) -> list[Problem]:
    problems = []
    if have.type != need.type:
        problems.append(Problem(f"{where} type", have.type, need.type))
    if have.nullable != need.nullable:
        problems.append(Problem(f"{where} null", _nullable(have), _nullable(need)))
    if have.collation != need.collation:
        problems.append(Problem(f"{where} collation", have.collation or "none", need.collation or "none"))
    return problems


def _presence(column: ColumnShape | None) -> str:
    return "absent" if column is None else "present"


def _nullable(column: ColumnShape) -> str:
    return "allowed" if column.nullable else "not allowed"


def _key(columns: tuple[str, ...]) -> str:
    return f"({', '.join(columns)})"

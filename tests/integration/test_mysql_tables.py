"""What a real server says about itself and its tables, to an account that may only do what the receiver may."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Boolean, Column, Integer, MetaData, String, Table
from sqlalchemy.dialects.mysql import BIGINT, DATETIME, JSON, MEDIUMTEXT, TINYINT
from sqlalchemy.schema import CreateTable

from orbit.mysql.checks import Requirements, judge, read_facts
from orbit.mysql.lane import Lane
from orbit.mysql.shape import TableShape, expected_shape, judge_shape, read_tables
from orbit.sandbox.server import admin_cursor
from tests.support.lanes import closing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orbit.sandbox import MySQLServer
    from tests.support.mysql import ReceiverDSNs

BUDGET_S = 10.0
SHAPED = Table(
    "shaped",
    MetaData(),
    Column("consumer", String(64), primary_key=True),
    Column("id", String(32, collation="utf8mb4_bin"), primary_key=True),
    Column("body", MEDIUMTEXT(), nullable=True),
    Column("n", BIGINT(unsigned=True), nullable=False),
    Column("i", Integer, nullable=False),
    Column("flag", Boolean, nullable=False),
    Column("tiny", TINYINT(1), nullable=False),
    Column("at", DATETIME(fsp=6), nullable=False),
    Column("doc", JSON, nullable=True),
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
    mysql_collate="utf8mb4_0900_bin",
)


@pytest.fixture
async def lane(receiver_dsns: ReceiverDSNs) -> AsyncIterator[Lane]:
    """A lane of the account with SELECT, INSERT and UPDATE; the table is there."""
    async with closing(Lane(receiver_dsns.admin)) as admin:
        await admin.define(CreateTable(SHAPED), budget_s=BUDGET_S)
    async with closing(Lane(receiver_dsns.run)) as made:
        yield made


async def _read(lane: Lane) -> dict[str, TableShape]:
    return await lane.read(lambda tx: read_tables(tx, ["shaped", "absent"]), budget_s=BUDGET_S)


async def test_the_server_of_the_tests_meets_the_requirements(lane: Lane, mysql: MySQLServer) -> None:
    facts = await lane.read(read_facts, budget_s=BUDGET_S)
    assert judge(facts, Requirements()) == []
    assert facts.version == mysql.version


async def test_a_table_made_from_core_has_the_shape_expected_from_core(lane: Lane) -> None:
    assert await _read(lane) == {"shaped": expected_shape(SHAPED)}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("ALTER TABLE shaped MODIFY n BIGINT NOT NULL", "shaped.n type is bigint, needed: bigint unsigned"),
        ("ALTER TABLE shaped MODIFY i INT NULL", "shaped.i null is allowed, needed: not allowed"),
        ("ALTER TABLE shaped DROP COLUMN doc", "shaped.doc is absent, needed: present"),
        ("ALTER TABLE shaped ADD COLUMN extra INT", "shaped.extra is present, needed: absent"),
        (
            "ALTER TABLE shaped MODIFY consumer VARCHAR(64) COLLATE utf8mb4_0900_ai_ci NOT NULL",
            "shaped.consumer collation is utf8mb4_0900_ai_ci, needed: utf8mb4_0900_bin",
        ),
        (
            "ALTER TABLE shaped MODIFY consumer VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL",
            "shaped.consumer collation is ascii_bin, needed: utf8mb4_0900_bin",
        ),
        ("ALTER TABLE shaped ADD UNIQUE KEY (i)", "shaped unique key is (i), needed: none such"),
        ("ALTER TABLE shaped ADD UNIQUE KEY ((i + 1))", "shaped unique key is ((`i` + 1)), needed: none such"),
        (
            "ALTER TABLE shaped DROP PRIMARY KEY, ADD PRIMARY KEY (consumer, id(16))",
            "shaped primary key is (consumer, id(16)), needed: (consumer, id)",
        ),
        (
            "ALTER TABLE shaped DROP PRIMARY KEY, ADD PRIMARY KEY (id, consumer)",
            "shaped primary key is (id, consumer), needed: (consumer, id)",
        ),
        ("ALTER TABLE shaped ENGINE = MyISAM", "shaped engine is MyISAM, needed: InnoDB"),
        ("DROP TABLE shaped", "shaped is absent, needed: a table"),
    ],
)
async def test_a_table_that_was_changed_is_found_out(
    lane: Lane, receiver_dsns: ReceiverDSNs, change: str, problem: str
) -> None:
    await _change(receiver_dsns, change)
    assert [str(found) for found in judge_shape({"shaped": expected_shape(SHAPED)}, await _read(lane))] == [problem]


async def test_a_foreign_key_is_found_out(lane: Lane, receiver_dsns: ReceiverDSNs) -> None:
    await _change(receiver_dsns, "CREATE TABLE other (i INT PRIMARY KEY)")
    await _change(receiver_dsns, "ALTER TABLE shaped ADD CONSTRAINT fk FOREIGN KEY (i) REFERENCES other (i)")
    found = judge_shape({"shaped": expected_shape(SHAPED)}, await _read(lane))
    assert [str(problem) for problem in found] == ["shaped foreign key is fk, needed: none"]


async def test_a_key_that_is_not_unique_does_no_harm(lane: Lane, receiver_dsns: ReceiverDSNs) -> None:
    await _change(receiver_dsns, "ALTER TABLE shaped ADD KEY (i)")
    assert judge_shape({"shaped": expected_shape(SHAPED)}, await _read(lane)) == []


async def test_a_trigger_is_seen_by_an_account_that_may_see_triggers(lane: Lane, receiver_dsns: ReceiverDSNs) -> None:
    await _change(receiver_dsns, "CREATE TRIGGER tr BEFORE INSERT ON shaped FOR EACH ROW SET NEW.i = 1")
    # The receiver's own account may not: information_schema hides them. See orbit/mysql/shape.py.
    assert (await _read(lane))["shaped"].triggers == frozenset()
    async with closing(Lane(receiver_dsns.admin)) as admin:
        found = judge_shape({"shaped": expected_shape(SHAPED)}, await _read(admin))
    assert [str(problem) for problem in found] == ["shaped trigger is tr, needed: none"]


async def _change(receiver_dsns: ReceiverDSNs, ddl: str) -> None:
    with admin_cursor(receiver_dsns.admin) as cursor:
        cursor.execute(ddl)

"""How the SQL of deliveries reads: from which index, in which order, with which locks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from orbit.mysql.statement import Statement
from orbit.server import delivery_statements as sql
from orbit.server.sweep import Sweeper
from tests.support.deliveries import BUDGET_S, Shop, fresh_platform, open_node, proofs
from tests.support.lanes import closing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from orbit.mysql.dsn import DSN
    from orbit.mysql.statement import Parameter
    from orbit.mysql.transaction import Transaction
    from orbit.sandbox import MySQLServer


@pytest.fixture(scope="module")
def filled_dsn(mysql: MySQLServer) -> Iterator[DSN]:
    with fresh_platform(mysql) as dsn:
        yield dsn


# State, attempts, how many.
KINDS = [
    ("ACKED", 1, 2_000),
    ("PENDING", 0, 60),
    ("PENDING", 1, 60),
    ("LEASED", 1, 60),
    ("EXPIRED", 10, 60),
]


@pytest.fixture(scope="module")
async def filled(filled_dsn: DSN) -> AsyncIterator[tuple[Shop, str]]:
    """Two subscriptions with a long history and some open deliveries of each kind."""
    platform = open_node(filled_dsn)
    async with closing(platform.pool):
        shop = await Shop.open(platform, filled_dsn)
        subscription, other = await shop.subscribe(), await shop.subscribe()
        for one in (subscription, other):
            for state, attempts, count in KINDS:
                await shop.change(
                    "INSERT INTO deliveries (delivery_id, subscription_id, event_id, state, attempts, attempt_budget,"
                    " epoch, lease_until, created_at, updated_at)"
                    " WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 999),"
                    " m (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM m WHERE i < 2)"
                    f" SELECT REPLACE(UUID(), '-', ''), '{one}', REPLACE(UUID(), '-', ''), '{state}', {attempts}, 10,"
                    f" {attempts}, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), UTC_TIMESTAMP(6)"
                    f" FROM n CROSS JOIN m LIMIT {count}"
                )
        await shop.change(
            "INSERT INTO events (event_id, queue_id, task_id, task_version, event_type, event, occurred_at)"
            " SELECT event_id, subscription_id, delivery_id, 1, 'task.submitted', '{}', created_at FROM deliveries"
            f" WHERE subscription_id IN ('{subscription}', '{other}')"
        )
        await shop.sql("ANALYZE TABLE deliveries, events")
        yield shop, subscription


async def plan(shop: Shop, statement: Statement, parameters: Mapping[str, Parameter]) -> str:
    """MySQL's plan as a tree, in words."""
    explain = Statement("EXPLAIN FORMAT=TREE " + statement.text, statement.names, statement.constants)

    async def work(tx: Transaction) -> str:
        return str((await tx.fetch(explain, parameters))[0][0])

    return await shop.platform.pool.read(work, budget_s=BUDGET_S)


async def test_a_claim_reads_nothing_but_its_index_and_sorts_nothing(filled: tuple[Shop, str]) -> None:
    shop, subscription = filled

    tree = await plan(shop, sql.CLAIMABLE, {"subscription_id": subscription, "room": 16})

    assert re.findall(r"Covering index lookup on deliveries using (\w+) \((.*?)\)  ", tree) == [
        ("ix_deliveries_claim", f"subscription_id = '{subscription}', in_window = 1, state = 'PENDING'"),
        ("ix_deliveries_claim", f"subscription_id = '{subscription}', in_window = 0, state = 'PENDING'"),
        ("ix_deliveries_claim", f"subscription_id = '{subscription}', in_window = 1"),
    ]
    assert "Sort" not in tree
    assert "scan" not in tree


async def test_a_claim_looks_at_no_more_rows_than_its_window_and_its_room(filled: tuple[Shop, str]) -> None:
    shop, subscription = filled

    async def work(tx: Transaction) -> int:
        before = await handler_reads(tx)
        await tx.fetch(sql.CLAIMABLE, {"subscription_id": subscription, "room": 5})
        return await handler_reads(tx) - before

    # 3 lookups, 2 x 5 candidates, 180 entries of the window, and what asking for the counters costs itself.
    assert await shop.platform.pool.read(work, budget_s=BUDGET_S) <= 220


async def handler_reads(tx: Transaction) -> int:
    rows = await tx.fetch(Statement("SHOW SESSION STATUS LIKE 'Handler_read%%'"))
    return sum(int(value) for _, value in rows)


async def test_the_sweeper_reads_its_index_in_order(filled: tuple[Shop, str]) -> None:
    shop, _ = filled

    tree = await plan(shop, sql.LEASE_OVER, {"batch": 10})

    assert re.findall(r"Index range scan on deliveries using (\w+)", tree) == ["ix_deliveries_lease"]
    assert "Sort" not in tree


@pytest.mark.parametrize("statement", [sql.LOCK, sql.ACKNOWLEDGE, sql.GIVE_BACK, sql.LEASED])
async def test_chosen_deliveries_are_found_by_their_number(filled: tuple[Shop, str], statement: Statement) -> None:
    shop, _ = filled
    parameters: dict[str, Parameter] = {"delivery_nos": [3, 5, 8]}
    if "now" in statement.names:
        parameters["now"] = None
    explain = Statement("EXPLAIN FORMAT=TRADITIONAL " + statement.text, statement.names)

    async def work(tx: Transaction) -> list[tuple[str, str, str]]:
        return [(row[2], row[4], row[6]) for row in await tx.fetch(explain, parameters)]

    steps = await shop.platform.pool.read(work, budget_s=BUDGET_S)

    assert steps[0] == ("deliveries", "range", "PRIMARY")
    assert steps[1:] in ([], [("events", "eq_ref", "PRIMARY")])


async def test_names_are_resolved_within_the_unique_index(filled: tuple[Shop, str]) -> None:
    shop, _ = filled

    tree = await plan(shop, sql.FIND, {"delivery_ids": ["a" * 32, "b" * 32, "c" * 32]})

    assert "Covering index range scan on deliveries using uq_deliveries_id" in tree


async def test_a_page_reads_each_group_from_the_index_and_never_the_whole_history(filled: tuple[Shop, str]) -> None:
    shop, subscription = filled

    tree = await plan(shop, sql.PAGE, {"subscription_id": subscription, "after": 0, "page": 20})

    assert tree.count("using ix_deliveries_claim") == 5
    assert "Table scan on deliveries" not in tree


async def test_a_claim_skips_what_others_have_locked_and_still_counts_it(filled_dsn: DSN) -> None:
    platform = open_node(filled_dsn)
    try:
        shop = await Shop.open(platform, filled_dsn)
        subscription = await shop.subscribe(window=2)
        await shop.submit(3)
        first, second = proofs(await shop.claim(subscription))
        await shop.end_leases(subscription)
        await Sweeper(platform).sweep_once()

        async def hold(tx: Transaction) -> list[str]:
            await tx.fetch(Statement(f"SELECT 1 FROM deliveries WHERE delivery_id = '{first.delivery_id}' FOR UPDATE"))
            return [one.proof.delivery_id for one in await shop.claim(subscription)]

        assert await platform.pool.run(hold, budget_s=BUDGET_S) == [second.delivery_id]
    finally:
        await platform.pool.close()

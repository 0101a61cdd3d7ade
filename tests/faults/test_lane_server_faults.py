"""A server of the tests' own that freezes, dies, refuses to commit, stops taking writes or has wrong settings."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from orbit.mysql.checks import Requirements, judge, read_facts
from orbit.mysql.dsn import SSLMode, SSLOptions
from orbit.mysql.errors import CommitUnconfirmed, Kind, NotCommitted, Stage
from orbit.mysql.lane import Outcome
from orbit.mysql.statement import Statement
from orbit.mysql.times import DEFAULT_TIMES
from orbit.sandbox import mysql_server
from orbit.sandbox.server import admin_cursor
from tests.support.lanes import INSERT, PATIENCE_S, Gate, LaneBench, be_patient, inserting, lane_bench, settled, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from orbit.mysql.dsn import DSN
    from orbit.mysql.transaction import Transaction
    from orbit.sandbox import MySQLServer
    from orbit.sandbox.server import Control

BUDGET_S = 10.0
HASTY = replace(DEFAULT_TIMES, connect_s=1.0, statement_s=1.0, commit_s=1.0)


@pytest.fixture(scope="module")
def server() -> Iterator[MySQLServer]:
    """One server for the tests of this file; each leaves it as it was."""
    with mysql_server(os.environ, own=True) as own:
        yield own


@pytest.fixture
def control(server: MySQLServer) -> Control:
    assert server.control is not None
    return server.control


@pytest.fixture
async def bench(server: MySQLServer) -> AsyncIterator[LaneBench]:
    async with lane_bench(server) as made:
        yield made


@pytest.fixture
def settings(server: MySQLServer) -> Iterator[Callable[[str, Any], None]]:
    """SET GLOBAL, undone afterwards in the opposite order."""
    before: list[tuple[str, Any]] = []

    def change(variable: str, value: Any) -> None:
        with admin_cursor(server.admin) as cursor:
            cursor.execute(f"SELECT @@GLOBAL.{variable}")
            row = cursor.fetchone()
            assert row is not None
            before.append((variable, row[0]))
            cursor.execute(f"SET GLOBAL {variable} = %s", (value,))

    yield change
    with admin_cursor(server.admin) as cursor:
        for variable, value in reversed(before):
            cursor.execute(f"SET GLOBAL {variable} = %s", (value,))


def _stop_writes(settings: Callable[[str, Any], None]) -> None:
    # super_read_only alone would switch read_only on with it, and leave it on when it is undone.
    settings("read_only", 1)
    settings("super_read_only", 1)


async def test_a_frozen_server_holds_no_call_beyond_its_deadline(bench: LaneBench, control: Control) -> None:
    lane, fresh = bench.lane(HASTY), bench.lane(HASTY)
    await lane.open()
    control.pause()
    try:
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(NotCommitted, match="no answer in time") as working:
                await lane.run(inserting("a"), budget_s=BUDGET_S)
            with pytest.raises(NotCommitted, match="no answer in time") as opening:
                await fresh.run(inserting("b"), budget_s=BUDGET_S)
    finally:
        control.resume()
    assert (working.value.kind, working.value.stage) == (Kind.RECONNECT, Stage.WORKING)
    assert (opening.value.kind, opening.value.stage) == (Kind.RECONNECT, Stage.OPENING)
    be_patient(lane)
    be_patient(fresh)
    await lane.run(inserting("c"), budget_s=BUDGET_S)
    await fresh.run(inserting("d"), budget_s=BUDGET_S)
    assert {"c", "d"} <= set(bench.ids())


async def test_a_commit_to_a_frozen_server_is_done_when_it_wakes(bench: LaneBench, control: Control) -> None:
    lane = bench.lane(HASTY)

    async def work(transaction: Transaction) -> None:
        await transaction.execute(INSERT, {"id": "a"})
        control.pause()

    try:
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(CommitUnconfirmed):
                await lane.run(work, budget_s=BUDGET_S)
    finally:
        control.resume()
    await until(lambda: bench.ids() == ["a"])


async def test_what_a_lane_dropped_is_not_sent_later(bench: LaneBench, control: Control) -> None:
    """A frozen server takes only what fits into its socket; the rest must not wait for it to wake."""
    lane = bench.lane(HASTY)
    await lane.open()
    assert lane._connection is not None
    assert lane._connection._writer is not None
    transport = lane._connection._writer.transport
    big = Statement("SELECT LENGTH(%s)", ("text",))
    waiting: list[int] = []

    async def work(transaction: Transaction) -> None:
        control.pause()
        sending = asyncio.create_task(transaction.fetch(big, {"text": "x" * 32_000_000}))
        await until(lambda: transport.get_write_buffer_size() > 0)
        waiting.append(transport.get_write_buffer_size())
        await sending

    try:
        with pytest.raises(NotCommitted, match="no answer in time"):
            await lane.run(work, budget_s=BUDGET_S)
        assert waiting[0] > 0
        assert transport.get_write_buffer_size() == 0
        await until(lambda: transport.get_extra_info("socket").fileno() == -1)
    finally:
        control.resume()


async def test_a_lane_with_tls_closes_in_time_although_nobody_answers(bench: LaneBench, control: Control) -> None:
    """TLS says goodbye and waits for the other side's; asyncio alone would give it 30 seconds."""
    lane = bench.lane(dsn=replace(bench.dsn, ssl=SSLOptions(SSLMode.REQUIRED)))
    await lane.open()
    control.pause()
    try:
        async with asyncio.timeout(PATIENCE_S):
            await lane.close()
    finally:
        control.resume()


async def test_a_lane_takes_its_leave_of_the_server(bench: LaneBench) -> None:
    aborted = "SELECT VARIABLE_VALUE FROM performance_schema.global_status WHERE VARIABLE_NAME = 'Aborted_clients'"
    before = bench.sql(aborted)
    lane = bench.lane()
    connection_id = await lane.run(_inserting_with_its_connection_id, budget_s=BUDGET_S)
    await lane.close()
    await bench.gone(connection_id)
    assert bench.sql(aborted) == before


async def _inserting_with_its_connection_id(transaction: Transaction) -> int:
    await transaction.execute(INSERT, {"id": "a"})
    return transaction.connection_id


async def test_a_killed_server_costs_one_call_and_loses_nothing_confirmed(bench: LaneBench, control: Control) -> None:
    lane = bench.lane()
    await lane.run(inserting("confirmed"), budget_s=BUDGET_S)

    async def work(transaction: Transaction) -> None:
        await transaction.execute(INSERT, {"id": "a"})
        control.kill()
        await transaction.execute(INSERT, {"id": "b"})

    with pytest.raises(NotCommitted) as working:
        await lane.run(work, budget_s=BUDGET_S)
    with pytest.raises(NotCommitted) as opening:
        await lane.run(inserting("c"), budget_s=BUDGET_S)
    await asyncio.to_thread(control.start)
    assert (working.value.errno, working.value.kind) == (2013, Kind.RECONNECT)
    assert (opening.value.errno, opening.value.kind, opening.value.stage) == (2003, Kind.RECONNECT, Stage.OPENING)
    await lane.run(inserting("d"), budget_s=BUDGET_S)
    assert bench.ids() == ["confirmed", "d"]


async def test_a_commit_that_the_server_refuses_is_still_unconfirmed(bench: LaneBench) -> None:
    """COMMIT waits for the commit lock and ends with 1205. It was rolled back, but no number may say so."""
    lane = bench.lane(replace(DEFAULT_TIMES, metadata_lock_s=1))
    with admin_cursor(bench.admin) as cursor:

        async def work(transaction: Transaction) -> None:
            await transaction.execute(INSERT, {"id": "a"})
            cursor.execute("FLUSH TABLES WITH READ LOCK")

        with pytest.raises(CommitUnconfirmed) as caught:
            await lane.run(work, budget_s=BUDGET_S)
        cursor.execute("UNLOCK TABLES")
    assert caught.value.errno == 1205
    assert lane.last_outcome is Outcome.UNCONFIRMED
    await bench.gone(caught.value.connection_id)
    assert bench.ids() == []


async def test_a_commit_killed_while_it_waits_is_unconfirmed(bench: LaneBench) -> None:
    lane, ids = bench.lane(), list[int]()
    with admin_cursor(bench.admin) as cursor:

        async def work(transaction: Transaction) -> None:
            ids.append(transaction.connection_id)
            await transaction.execute(INSERT, {"id": "a"})
            cursor.execute("FLUSH TABLES WITH READ LOCK")

        task = asyncio.create_task(lane.run(work, budget_s=BUDGET_S))
        waiting = "SELECT 1 FROM performance_schema.processlist WHERE id = %s AND state LIKE 'Waiting for commit lock'"
        await until(lambda: bool(ids) and bool(bench.sql(waiting, ids[0])))
        bench.kill(ids[0])
        with pytest.raises(CommitUnconfirmed) as caught:
            await settled(task)
        cursor.execute("UNLOCK TABLES")
    assert caught.value.errno in {1317, 2013}
    assert caught.value.connection_id == ids[0]


async def test_a_server_that_stops_taking_writes_is_left_for_the_next_host(
    bench: LaneBench, mysql: MySQLServer, settings: Callable[[str, Any], None]
) -> None:
    """Two servers with one account each of the same name: what a client of a replicated database sees in a failover."""
    async with lane_bench(mysql) as other:
        _same_account(bench.dsn, other)
        lane = bench.lane(dsn=replace(bench.dsn, hosts=(bench.dsn.hosts[0], other.dsn.hosts[0])))
        await lane.run(inserting("before"), budget_s=BUDGET_S)
        _stop_writes(settings)
        with pytest.raises(NotCommitted) as caught:
            await lane.run(inserting("refused"), budget_s=BUDGET_S)
        assert (caught.value.errno, caught.value.kind, caught.value.stage) == (1290, Kind.RECONNECT, Stage.WORKING)
        await lane.run(inserting("after"), budget_s=BUDGET_S)
        assert bench.ids() == ["before"]
        with admin_cursor(other.admin) as cursor:
            cursor.execute(f"SELECT id FROM `{bench.dsn.database}`.t")
            assert cursor.fetchall() == (("after",),)
            cursor.execute(f"DROP DATABASE `{bench.dsn.database}`")
            cursor.execute(f"DROP USER `{bench.dsn.user}`@'%'")


def _same_account(dsn: DSN, other: LaneBench) -> None:
    with admin_cursor(other.admin) as cursor:
        cursor.execute(f"CREATE DATABASE `{dsn.database}`")
        cursor.execute(f"CREATE TABLE `{dsn.database}`.t LIKE t")
        cursor.execute("CREATE USER %s@'%%' IDENTIFIED BY %s", (dsn.user, dsn.password))
        cursor.execute(f"GRANT SELECT, INSERT ON `{dsn.database}`.* TO %s@'%%'", (dsn.user,))


@pytest.mark.parametrize("variable", ["read_only", "super_read_only"])
async def test_with_several_hosts_a_read_only_one_is_not_taken(
    bench: LaneBench, settings: Callable[[str, Any], None], variable: str
) -> None:
    settings("read_only", 1)
    if variable == "super_read_only":
        settings(variable, 1)
    host = bench.dsn.hosts[0]
    lane = bench.lane(dsn=replace(bench.dsn, hosts=(host, host)))
    with pytest.raises(NotCommitted, match="the server is read-only") as caught:
        await lane.run(inserting("a"), budget_s=BUDGET_S)
    assert (caught.value.errno, caught.value.kind, caught.value.stage) == (None, Kind.RECONNECT, Stage.OPENING)


async def test_a_server_that_stops_taking_writes_before_commit_leaves_it_unconfirmed(
    bench: LaneBench, settings: Callable[[str, Any], None]
) -> None:
    lane = bench.lane()

    async def work(transaction: Transaction) -> None:
        await transaction.execute(INSERT, {"id": "a"})
        _stop_writes(settings)

    with pytest.raises(CommitUnconfirmed) as caught:
        await lane.run(work, budget_s=BUDGET_S)
    assert caught.value.errno == 1290


async def test_too_many_connections_are_a_matter_of_waiting(
    bench: LaneBench, settings: Callable[[str, Any], None]
) -> None:
    settings("max_user_connections", 1)
    holder, lane, gate = bench.lane(), bench.lane(), Gate()

    async def hold(_: Transaction) -> None:
        await gate.stop()

    held = asyncio.create_task(holder.read(hold, budget_s=BUDGET_S))
    await gate.reached()
    with pytest.raises(NotCommitted) as caught:
        await lane.run(inserting("a"), budget_s=BUDGET_S)
    gate.open()
    await settled(held)
    assert (caught.value.errno, caught.value.kind, caught.value.stage) == (1203, Kind.BACK_OFF, Stage.OPENING)


async def test_a_statement_larger_than_the_server_takes_is_a_matter_of_the_servers_settings(
    bench: LaneBench, settings: Callable[[str, Any], None]
) -> None:
    settings("max_allowed_packet", 1024 * 1024)
    lane = bench.lane()

    async def work(transaction: Transaction) -> None:
        await transaction.execute(INSERT, {"id": "a"})
        await transaction.execute(INSERT, {"id": "x" * 1024 * 1024})

    with pytest.raises(NotCommitted) as caught:
        await lane.run(work, budget_s=BUDGET_S)
    assert (caught.value.errno, caught.value.kind) == (1153, Kind.CONFIGURATION)
    assert lane.tally.dropped == 1
    await lane.run(inserting("b"), budget_s=BUDGET_S)
    assert bench.ids() == ["b"]


async def test_each_setting_that_matters_is_read_from_the_server(
    bench: LaneBench, settings: Callable[[str, Any], None]
) -> None:
    settings("sql_mode", "ANSI_QUOTES")
    settings("innodb_flush_log_at_trx_commit", 2)
    settings("sync_binlog", 0)
    settings("max_allowed_packet", 1024 * 1024)
    _stop_writes(settings)
    lane = bench.lane()
    facts = await lane.read(read_facts, budget_s=BUDGET_S)
    assert [str(problem) for problem in judge(facts, Requirements())] == [
        "sql_mode is ANSI_QUOTES, needed: STRICT_TRANS_TABLES in it",
        "innodb_flush_log_at_trx_commit is 2, needed: 1",
        "sync_binlog is 0, needed: 1",
        "max_allowed_packet is 1048576, needed: at least 4194304",
        "super_read_only is ON, needed: OFF",
    ]


async def test_a_servers_own_sql_mode_changes_nothing_in_a_lane(
    bench: LaneBench, settings: Callable[[str, Any], None]
) -> None:
    settings("sql_mode", "ANSI_QUOTES,PIPES_AS_CONCAT")
    lane = bench.lane()
    with pytest.raises(NotCommitted) as caught:
        await lane.run(inserting("x" * 65), budget_s=BUDGET_S)
    assert caught.value.errno == 1406, "strict: not cut to 64 and stored"
    await lane.run(inserting('"quoted"'), budget_s=BUDGET_S)
    assert bench.ids() == ['"quoted"']

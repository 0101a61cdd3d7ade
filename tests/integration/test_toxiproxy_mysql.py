"""The MySQL proxy in front of a real MySQL. What really committed is read through a second, direct connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiomysql
import pymysql
import pytest
from pymysql.err import IntegrityError, OperationalError, ProgrammingError

from tests.support.proxied import DEADLINE_S, Table, query
from toxiproxy import (
    CutAfterCommit,
    CutAfterStatement,
    CutBeforeCommit,
    CutInHandshake,
    DarkLink,
    DelayCommitOk,
    DropCommitOk,
    End,
    HoldCommit,
    MySQLProxy,
    Point,
    RefuseConnect,
    ReplaceCommitOk,
    SilentConnect,
    TransactionTrace,
    UnfiredFault,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from orbit.sandbox import MySQLServer

LOST = 2013
COMMIT = b"\x07\x00\x00\x00\x03COMMIT"


@pytest.fixture(scope="module")
def table(mysql: MySQLServer) -> Iterator[Table]:
    database = mysql.create_database("toxiproxy")
    table = Table(database.admin)
    table.create()
    yield table
    mysql.drop_database(database)


def proxy_for(table: Table) -> MySQLProxy:
    return MySQLProxy(table.host, table.port)


async def test_without_a_fault_everything_passes_and_is_counted(table: Table) -> None:
    number = table.fresh()
    async with proxy_for(table) as proxy, table.client(proxy.port) as client:
        connection = proxy.connection_of(client.thread_id())
        before = proxy.round_trips(connection)
        await query(client, f"INSERT INTO t VALUES ({number})")
        await query(client, "SELECT id FROM t")
        await client.commit()
        assert proxy.round_trips(connection) - before == 3
        assert proxy.transactions(connection) == [TransactionTrace(round_trips=3, statements=2, ended="COMMIT")]
        commit, answer = proxy.journal[-2:]
    assert table.has(number)
    assert (commit.point, commit.command, commit.in_transaction, commit.bytes) == (Point.COMMIT, "COMMIT", True, 11)
    assert (answer.point, answer.connection, answer.bytes, answer.fired) == (Point.COMMIT_OK, connection, 11, None)


async def test_pymysql_logs_in_in_plain_text_though_it_would_have_tls(table: Table) -> None:
    number = table.fresh()

    def work(port: int) -> bool:
        connection = pymysql.connect(database=table.dsn.database, **table.options(port))
        encrypted = bool(connection._secure)
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO t VALUES (%s)", number)
        connection.commit()
        connection.close()
        return encrypted

    async with proxy_for(table) as proxy:
        assert await asyncio.to_thread(work, proxy.port) is False
        (greeting,) = proxy.journal.at(Point.GREETING)
        assert greeting.command == "plain text only"
        await proxy.journal.wait_for(lambda e: e.point is Point.SERVER_CLOSED, DEADLINE_S)
    assert table.has(number)


async def test_a_login_with_an_empty_authentication_cache_passes(table: Table, mysql: MySQLServer) -> None:
    # A new account: caching_sha2_password asks for the whole exchange, by RSA as there is no TLS.
    database = mysql.create_database("toxiproxy")
    dsn = mysql.create_account(database, ["SELECT"])
    fresh = Table(dsn)
    try:
        async with proxy_for(table) as proxy:
            async with fresh.client(proxy.port) as client:
                await query(client, "SELECT 1")
            assert [e.errno for e in proxy.journal.at(Point.LOGIN)] == [None]
    finally:
        mysql.drop_database(database)


async def test_a_refused_login_is_written_down(table: Table) -> None:
    async with proxy_for(table) as proxy:
        options = table.options(proxy.port) | {"password": "wrong"}
        with pytest.raises(OperationalError):
            await aiomysql.connect(**options)
        assert [e.errno for e in proxy.journal.at(Point.LOGIN)] == [1045]


async def test_a_client_that_insists_on_tls_is_told_why_not(table: Table) -> None:
    async with proxy_for(table) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        header = await reader.readexactly(4)
        await reader.readexactly(int.from_bytes(header[:3], "little"))
        writer.write(b"\x20\x00\x00\x01" + (0x200 | 0x800).to_bytes(4, "little") + bytes(28))
        answer = await asyncio.wait_for(reader.read(), DEADLINE_S)
        writer.close()
        await writer.wait_closed()
        assert [e.command for e in proxy.journal.at(Point.REFUSED)] == ["TLS"]
    assert answer[3] == 2
    assert answer[4:7] == b"\xff\xea\x07"  # ERR 2026
    assert b"plain text only" in answer


@pytest.mark.parametrize("slice_bytes", [1, 7])
async def test_everything_passes_in_small_pieces(table: Table, slice_bytes: int) -> None:
    number = table.fresh()
    async with MySQLProxy(table.host, table.port, slice_bytes=slice_bytes) as proxy:
        assert await table.insert_and_commit(proxy.port, number) is None
    assert table.has(number)


async def test_a_statement_and_a_row_beyond_16_mib_pass(table: Table) -> None:
    text = "x" * (2**24 + 5)
    async with proxy_for(table) as proxy, table.client(proxy.port) as client, client.cursor() as cursor:
        await cursor.execute(f"SELECT '{text}'")
        assert await cursor.fetchone() == (text,)
        await cursor.execute("SELECT 1")
        assert await cursor.fetchone() == (1,)


@pytest.mark.parametrize("end", [End.FIN, End.RST])
async def test_the_ok_of_commit_is_dropped_and_the_row_is_there(table: Table, end: End) -> None:
    number, other = table.fresh(), table.fresh()
    async with proxy_for(table) as proxy:
        armed = proxy.arm(DropCommitOk(end))
        assert await table.insert_and_commit(proxy.port, number) == LOST
        entry = await armed.wait(DEADLINE_S)
        assert (entry.point, entry.connection, entry.fired) == (Point.COMMIT_OK, 1, "DropCommitOk")
        assert table.has(number)
        # It fires once.
        assert await table.insert_and_commit(proxy.port, other) is None
    assert table.has(other)


@pytest.mark.parametrize("keep", range(1, 11))
async def test_a_part_of_the_ok_is_no_ok(table: Table, keep: int) -> None:
    number = table.fresh()
    async with proxy_for(table) as proxy:
        armed = proxy.arm(DropCommitOk(End.RST, keep_bytes=keep))
        assert await table.insert_and_commit(proxy.port, number) == LOST
        assert armed.fired
    assert table.has(number)


async def test_the_kept_bytes_are_the_first_of_the_ok(table: Table) -> None:
    number = table.fresh()
    async with proxy_for(table) as proxy, table.client(proxy.port) as client:
        await query(client, f"INSERT INTO t VALUES ({number})")
        proxy.arm(DropCommitOk(End.FIN, keep_bytes=10))
        client._writer.write(COMMIT)
        assert await asyncio.wait_for(client._reader.read(), DEADLINE_S) == bytes.fromhex("07000001000000000000")
    assert table.has(number)


async def test_fin_is_an_end_and_rst_is_a_break(table: Table) -> None:
    async with proxy_for(table) as proxy:
        async with table.client(proxy.port) as client:
            await query(client, f"INSERT INTO t VALUES ({table.fresh()})")
            proxy.arm(DropCommitOk(End.FIN))
            client._writer.write(COMMIT)
            assert await asyncio.wait_for(client._reader.read(), DEADLINE_S) == b""
        async with table.client(proxy.port) as client:
            await query(client, f"INSERT INTO t VALUES ({table.fresh()})")
            proxy.arm(DropCommitOk(End.RST))
            client._writer.write(COMMIT)
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(client._reader.read(), DEADLINE_S)


async def test_after_the_dropped_ok_silence_holds_the_line(table: Table) -> None:
    number = table.fresh()
    async with proxy_for(table) as proxy, table.client(proxy.port) as client:
        armed = proxy.arm(DropCommitOk(End.SILENCE))
        await query(client, f"INSERT INTO t VALUES ({number})")
        committing = asyncio.create_task(client.commit())
        await armed.wait(DEADLINE_S)
        assert table.has(number)
        # MySQL ends the session, and even that does not reach the client.
        table.run("KILL %s", client.thread_id())
        await proxy.journal.wait_for(lambda e: e.point is Point.SERVER_CLOSED, DEADLINE_S)
        assert not committing.done()
        committing.cancel()
        await asyncio.wait([committing])


@pytest.mark.parametrize("end", [End.FIN, End.RST])
async def test_a_commit_that_is_cut_never_reaches_mysql(table: Table, end: End) -> None:
    number = table.fresh()
    async with proxy_for(table) as proxy:
        armed = proxy.arm(CutBeforeCommit(end))
        assert await table.insert_and_commit(proxy.port, number) == LOST
        entry = await armed.wait(DEADLINE_S)
        assert (entry.point, entry.in_transaction) == (Point.COMMIT, True)
        assert entry.thread_id is not None
        await table.until_thread_ends(entry.thread_id)
        assert proxy.journal.at(Point.COMMIT_OK) == []
    assert not table.has(number)


async def test_a_commit_cut_in_silence_leaves_the_row_locked(table: Table) -> None:
    number = table.fresh()
    async with proxy_for(table) as proxy, table.client(proxy.port) as client:
        armed = proxy.arm(CutBeforeCommit(End.SILENCE))
        await query(client, f"INSERT INTO t VALUES ({number})")
        committing = asyncio.create_task(client.commit())
        entry = await armed.wait(DEADLINE_S)
        committing.cancel()
        await asyncio.wait([committing])
        client.close()
        await proxy.journal.wait_for(lambda e: e.point is Point.CLIENT_CLOSED, DEADLINE_S)
        with pytest.raises(OperationalError) as locked:
            table.run("SELECT id FROM t WHERE id = %s FOR UPDATE NOWAIT", number)
        assert locked.value.args[0] == 3572  # the client is gone, its transaction is not
    assert entry.thread_id is not None
    await table.until_thread_ends(entry.thread_id)
    assert not table.has(number)


async def test_a_client_cut_after_commit_was_forwarded_has_committed(table: Table) -> None:
    number = table.fresh()
    async with proxy_for(table) as proxy:
        armed = proxy.arm(CutAfterCommit(End.RST))
        assert await table.insert_and_commit(proxy.port, number) == LOST
        await armed.wait_finished(DEADLINE_S)
        assert [e.command for e in proxy.journal.at(Point.COMMIT_OK)] == ["COMMIT"]
        assert table.has(number)
        await proxy.journal.wait_for(lambda e: e.point is Point.SERVER_CLOSED, DEADLINE_S)


async def test_a_held_commit_is_delivered_though_the_client_has_gone(table: Table) -> None:
    number = table.fresh()
    release = asyncio.Event()
    async with proxy_for(table) as proxy:
        armed = proxy.arm(HoldCommit(release))
        async with table.client(proxy.port) as client:
            await query(client, f"INSERT INTO t VALUES ({number})")
            committing = asyncio.create_task(client.commit())
            entry = await armed.wait(DEADLINE_S)
            committing.cancel()
            await asyncio.wait([committing])
        assert not table.has(number)
        assert not armed.finished
        release.set()
        await armed.wait_finished(DEADLINE_S)
        assert table.has(number)
        points = [e.point for e in proxy.journal if e.connection == entry.connection and e.seq >= entry.seq]
        assert points[:2] == [Point.COMMIT, Point.RELEASED]
        assert Point.COMMIT_OK in points
        assert entry.thread_id is not None
        await table.until_thread_ends(entry.thread_id)


async def test_an_insert_waits_for_a_held_commit_and_is_a_duplicate_where_a_select_sees_nothing(table: Table) -> None:
    number = table.fresh()
    async with proxy_for(table) as proxy:
        armed = proxy.arm(HoldCommit(asyncio.Event()))
        first = asyncio.create_task(table.insert_and_commit(proxy.port, number))
        await armed.wait(DEADLINE_S)
        assert not table.has(number)
        second = asyncio.create_task(asyncio.to_thread(table.run, "INSERT INTO t VALUES (%s)", number))
        await table.until_a_lock_is_waited_for()
        hold = armed.fault
        assert isinstance(hold, HoldCommit)
        assert isinstance(hold.until, asyncio.Event)
        hold.until.set()
        assert await first is None
        with pytest.raises(IntegrityError) as duplicate:
            await second
        assert duplicate.value.args[0] == 1062


async def test_a_commit_held_for_seconds_arrives_and_its_effect_ends_with_the_answer(table: Table) -> None:
    number = table.fresh()
    async with proxy_for(table) as proxy, table.client(proxy.port) as client:
        armed = proxy.arm(HoldCommit(0.05))
        await query(client, f"INSERT INTO t VALUES ({number})")
        await client.commit()
        entry = await armed.wait(DEADLINE_S)
        assert armed.finished
        (released,) = proxy.journal.at(Point.RELEASED)
        assert released.at - entry.at >= 0.05
    assert table.has(number)


async def test_a_commit_that_is_never_released_never_happens(table: Table) -> None:
    number = table.fresh()
    async with proxy_for(table) as proxy:
        armed = proxy.arm(HoldCommit(asyncio.Event()))
        committing = asyncio.create_task(table.insert_and_commit(proxy.port, number))
        entry = await armed.wait(DEADLINE_S)
    assert await committing == LOST
    assert entry.thread_id is not None
    await table.until_thread_ends(entry.thread_id)
    assert not table.has(number)


async def test_a_held_commit_cannot_be_delivered_to_a_session_that_was_killed(table: Table) -> None:
    number = table.fresh()
    release = asyncio.Event()
    async with proxy_for(table) as proxy:
        armed = proxy.arm(HoldCommit(release))
        committing = asyncio.create_task(table.insert_and_commit(proxy.port, number))
        entry = await armed.wait(DEADLINE_S)
        table.run("KILL %s", entry.thread_id)
        assert await committing == LOST
        release.set()
        await proxy.journal.wait_for(
            lambda e: e.point in {Point.RELEASED, Point.UNDELIVERED} and e.seq > entry.seq, DEADLINE_S
        )
        assert proxy.journal.at(Point.COMMIT_OK) == []
    assert not table.has(number)


async def test_a_delayed_ok_arrives_late(table: Table) -> None:
    number = table.fresh()
    release = asyncio.Event()
    async with proxy_for(table) as proxy:
        armed = proxy.arm(DelayCommitOk(release))
        committing = asyncio.create_task(table.insert_and_commit(proxy.port, number))
        await armed.wait(DEADLINE_S)
        assert table.has(number)
        assert not committing.done()
        release.set()
        assert await committing is None
        assert len(proxy.journal.at(Point.RELEASED)) == 1


async def test_a_delayed_ok_finds_nobody_when_the_client_has_gone(table: Table) -> None:
    release = asyncio.Event()
    async with proxy_for(table) as proxy:
        armed = proxy.arm(DelayCommitOk(release))
        committing = asyncio.create_task(table.insert_and_commit(proxy.port, table.fresh()))
        await armed.wait(DEADLINE_S)
        committing.cancel()
        await asyncio.wait([committing])
        await proxy.journal.wait_for(lambda e: e.point is Point.CLIENT_CLOSED, DEADLINE_S)
        release.set()
        await armed.wait_finished(DEADLINE_S)


async def test_an_error_in_place_of_the_ok_hides_a_commit(table: Table) -> None:
    number = table.fresh()
    async with proxy_for(table) as proxy:
        armed = proxy.arm(ReplaceCommitOk(1598))
        assert await table.insert_and_commit(proxy.port, number) == 1598
        assert armed.fired
    assert table.has(number)


async def test_an_error_of_commit_passes_and_the_first_real_ok_is_dropped(table: Table) -> None:
    number = table.fresh()
    async with proxy_for(table) as proxy, table.client(proxy.port) as client:
        armed = proxy.arm(DropCommitOk())
        await query(client, f"INSERT INTO t VALUES ({number})")
        with pytest.raises(ProgrammingError) as broken:
            await query(client, "COMMIT 'not like this'")
        assert broken.value.args[0] == 1064
        assert proxy.armory.unfired() == [armed]
        assert [(e.command, e.errno) for e in proxy.journal.at(Point.ERROR)] == [("COMMIT", 1064)]
        with pytest.raises(OperationalError):
            await client.commit()
        assert armed.fired
    assert table.has(number)


@pytest.mark.parametrize("n", [1, 2])
async def test_the_connection_is_cut_after_the_nth_statement(table: Table, n: int) -> None:
    numbers = [table.fresh() for _ in range(3)]
    async with proxy_for(table) as proxy, table.client(proxy.port) as client:
        armed = proxy.arm(CutAfterStatement(n))
        await client.begin()
        for number in numbers[:n]:
            await query(client, f"INSERT INTO t VALUES ({number})")
        with pytest.raises(OperationalError) as lost:
            await query(client, f"INSERT INTO t VALUES ({numbers[n]})")
        assert lost.value.args[0] in {2006, LOST}
        entry = await armed.wait(DEADLINE_S)
        assert entry.command == "INSERT"
        await table.until_thread_ends(client.thread_id())
    assert not table.has(numbers[0])


@pytest.mark.parametrize("make", [lambda n: DropCommitOk(nth=n), lambda n: CutBeforeCommit(nth=n)])
async def test_a_fault_may_wait_for_a_later_commit(
    table: Table, make: Callable[[int], DropCommitOk | CutBeforeCommit]
) -> None:
    async with proxy_for(table) as proxy:
        armed = proxy.arm(make(3))
        assert await table.insert_and_commit(proxy.port, table.fresh()) is None
        assert await table.insert_and_commit(proxy.port, table.fresh()) is None
        assert not armed.fired
        assert await table.insert_and_commit(proxy.port, table.fresh()) == LOST
        assert (await armed.wait(DEADLINE_S)).connection == 3


async def test_faults_armed_one_after_another_fire_one_after_another(table: Table) -> None:
    number = table.fresh()
    async with proxy_for(table) as proxy:
        for _ in range(3):
            proxy.arm(CutBeforeCommit())
        proxy.arm(DropCommitOk())
        assert [await table.insert_and_commit(proxy.port, number) for _ in range(4)] == [LOST] * 4
    assert table.has(number)


async def test_a_commit_outside_a_transaction_does_not_use_a_fault_up(table: Table) -> None:
    async with proxy_for(table) as proxy, table.client(proxy.port) as client:
        armed = proxy.arm(DropCommitOk())
        await client.commit()
        assert not armed.fired
        (phantom,) = [e for e in proxy.journal.at(Point.COMMAND) if e.command == "COMMIT"]
        assert phantom.in_transaction is False
        await query(client, f"INSERT INTO t VALUES ({table.fresh()})")
        with pytest.raises(OperationalError):
            await client.commit()
        assert armed.fired


async def test_other_connections_go_on(table: Table) -> None:
    numbers = [table.fresh() for _ in range(4)]
    release = asyncio.Event()
    async with proxy_for(table) as proxy:
        armed = proxy.arm(HoldCommit(release))
        held = asyncio.create_task(table.insert_and_commit(proxy.port, numbers[0]))
        await armed.wait(DEADLINE_S)
        assert [await table.insert_and_commit(proxy.port, n) for n in numbers[1:]] == [None] * 3
        assert not held.done()
        release.set()
        assert await held is None


async def test_a_refused_connect_is_reset(table: Table) -> None:
    async with proxy_for(table) as proxy:
        armed = proxy.arm(RefuseConnect())
        with pytest.raises(OperationalError):
            await aiomysql.connect(**table.options(proxy.port))
        assert armed.fired
        assert await table.insert_and_commit(proxy.port, table.fresh()) is None


async def test_a_silent_connect_says_nothing(table: Table) -> None:
    async with proxy_for(table) as proxy:
        armed = proxy.arm(SilentConnect())
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        reading = asyncio.create_task(reader.read())
        await armed.wait(DEADLINE_S)
        assert await table.insert_and_commit(proxy.port, table.fresh()) is None
        assert not reading.done()
        writer.close()
        await writer.wait_closed()
        await asyncio.wait([reading])
        await armed.wait_finished(DEADLINE_S)


@pytest.mark.parametrize("end", [End.FIN, End.RST])
@pytest.mark.parametrize("at", ["greeting", "login"])
async def test_a_connection_is_cut_in_the_handshake(table: Table, at: str, end: End) -> None:
    async with proxy_for(table) as proxy:
        armed = proxy.arm(CutInHandshake("greeting", end) if at == "greeting" else CutInHandshake("login", end))
        with pytest.raises(OperationalError):
            await aiomysql.connect(**table.options(proxy.port))
        assert (await armed.wait(DEADLINE_S)).point == at


async def test_a_dark_link_is_dark_for_every_connection_until_it_is_healed(table: Table) -> None:
    number = table.fresh()
    async with proxy_for(table) as proxy, table.client(proxy.port) as one, table.client(proxy.port) as two:
        armed = proxy.arm(DarkLink(after_statement=1))
        await query(one, f"INSERT INTO t VALUES ({number})")
        await armed.wait(DEADLINE_S)
        waiting = [asyncio.create_task(one.commit()), asyncio.create_task(two.ping(reconnect=False))]
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        waiting.append(asyncio.create_task(reader.read()))
        await proxy.journal.wait_for(lambda e: e.point is Point.ACCEPTED and e.connection == 3, DEADLINE_S)
        proxy_saw = len(proxy.journal)
        assert not any(task.done() for task in waiting)
        proxy.heal()
        # What met the darkness stays in it.
        two._writer.write(COMMIT)
        assert await table.insert_and_commit(proxy.port, table.fresh()) is None
        assert all(e.connection == 4 for e in proxy.journal[proxy_saw:])
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        writer.close()
        await writer.wait_closed()
    assert not table.has(number)


async def test_a_dark_link_may_begin_with_a_connect(table: Table) -> None:
    async with proxy_for(table) as proxy:
        armed = proxy.arm(DarkLink())
        connecting = asyncio.create_task(aiomysql.connect(**table.options(proxy.port)))
        await armed.wait(DEADLINE_S)
        assert not connecting.done()
        connecting.cancel()
        await asyncio.wait([connecting])


async def test_an_unfired_fault_fails_the_run(table: Table) -> None:
    async with proxy_for(table) as proxy:
        proxy.arm(DropCommitOk(nth=2))
        assert await table.insert_and_commit(proxy.port, table.fresh()) is None
        with pytest.raises(UnfiredFault, match=r"DropCommitOk \(matched 1 of 2\)"):
            proxy.require_fired()
        assert await table.insert_and_commit(proxy.port, table.fresh()) == LOST
        proxy.require_fired()


async def leave_unfired(table: Table, *, passing: Exception | None) -> None:
    async with proxy_for(table) as proxy:
        proxy.arm(CutBeforeCommit())
        if passing is not None:
            raise passing


async def test_leaving_with_an_unfired_fault_raises(table: Table) -> None:
    with pytest.raises(UnfiredFault, match="CutBeforeCommit"):
        await leave_unfired(table, passing=None)


async def test_an_unfired_fault_does_not_hide_the_error_that_is_passing(table: Table) -> None:
    with pytest.raises(KeyError) as passing:
        await leave_unfired(table, passing=KeyError("mine"))
    assert passing.value.__notes__ == [
        "and the fault proxy says: armed and never fired: CutBeforeCommit (matched 0 of 1)"
    ]


async def test_waiting_ends_with_its_deadline(table: Table) -> None:
    async with proxy_for(table) as proxy:
        armed = proxy.arm(SilentConnect())
        with pytest.raises(TimeoutError):
            await armed.wait(0.01)
        with pytest.raises(TimeoutError):
            await armed.wait_finished(0.01)
        with pytest.raises(TimeoutError):
            await proxy.journal.wait_for(lambda e: e.point is Point.COMMIT, 0.01)
        _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        await armed.wait(DEADLINE_S)
        writer.close()
        await writer.wait_closed()

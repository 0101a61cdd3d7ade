"""Every way to end a transaction that was tried on a real MySQL: none may pass the proxy without a word.

For each form a row is inserted, the form is sent, and a second connection says whether the row was committed. What
committed must stand in the journal as a recognised COMMIT, or as unrecognised, which fails the run; what did not
commit must stand there as neither.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from pymysql.constants import COMMAND
from pymysql.err import OperationalError

from tests.support.proxied import DEADLINE_S, Table, query
from toxiproxy import DropCommitOk, MySQLProxy, Point, UnrecognisedTraffic

if TYPE_CHECKING:
    from collections.abc import Iterator

    import aiomysql

    from orbit.sandbox import MySQLServer

RECOGNISED = [
    "COMMIT",
    "commit",
    "CoMmIt",
    "   COMMIT",
    "\n\r\t COMMIT\n",
    "/* x */COMMIT",
    "/* x */ COMMIT /* y */",
    "-- c\nCOMMIT",
    "# c\nCOMMIT",
    "/*!COMMIT*/",
    "/*!80000 COMMIT */",
    "/*!080000 COMMIT */",
    "/*!99999 x */COMMIT",
    "/*!999999 x /* y */ z */COMMIT",
    "COMMIT;",
    "COMMIT WORK",
    "COMMIT AND CHAIN",
    "COMMIT AND NO CHAIN",
    "COMMIT RELEASE",
    "COMMIT/**/WORK",
]
UNRECOGNISED = [
    "SELECT 1;COMMIT",
    "COMMIT;BEGIN",
    "COMMIT AND CHAIN;SELECT 1",
    "CALL commit_it()",
    "BEGIN",
    "START TRANSACTION",
    "SET autocommit=1",
    "CREATE TABLE made_{} (a INT)",
    "LOCK TABLES other WRITE",
    "ANALYZE TABLE t",
    "TRUNCATE TABLE other",
]
NOT_A_COMMIT = [
    "PREPARE s FROM 'COMMIT'",
    "SELECT 'COMMIT'",
    "SAVEPOINT commit_a",
    "ROLLBACK;-- COMMIT",
    "ROLLBACK",
    "/*!99999 COMMIT */ SELECT 1",
    "-- COMMIT\nSELECT 1",
    "SELECT 1 AS `;COMMIT`",
    "CREATE TEMPORARY TABLE passing_{} (a INT)",
    "DO 1",
]


@pytest.fixture(scope="module")
def table(mysql: MySQLServer) -> Iterator[Table]:
    database = mysql.create_database("toxiproxy")
    table = Table(database.admin)
    table.create()
    table.run("CREATE TABLE other (id INT PRIMARY KEY)")
    table.run("CREATE PROCEDURE commit_it() COMMIT")
    yield table
    mysql.drop_database(database)


async def begin(client: aiomysql.Connection, number: int) -> None:
    await query(client, f"INSERT INTO t VALUES ({number})")


@pytest.mark.parametrize("text", RECOGNISED)
async def test_a_form_of_commit_is_recognised_and_its_ok_can_be_dropped(table: Table, text: str) -> None:
    kept, dropped = table.fresh(), table.fresh()
    async with MySQLProxy(table.host, table.port) as proxy:
        async with table.client(proxy.port) as client:
            await begin(client, kept)
            await query(client, text)
            assert table.has(kept)
        armed = proxy.arm(DropCommitOk())
        async with table.client(proxy.port) as client:
            await begin(client, dropped)
            with pytest.raises(OperationalError):
                await query(client, text)
        await armed.wait(DEADLINE_S)
        assert table.has(dropped)
        assert len(proxy.journal.at(Point.COMMIT_OK)) == 2


async def commit_unrecognised(table: Table, *texts: str) -> None:
    """Insert a row, send the texts, see that the row is committed and that the proxy was not sure of it; raises."""
    number = table.fresh()
    async with MySQLProxy(table.host, table.port) as proxy, table.client(proxy.port) as client:
        await begin(client, number)
        for text in texts:
            await query(client, text.format(number))
        await proxy.journal.wait_for(lambda e: e.point is Point.UNRECOGNISED, DEADLINE_S)
        assert table.has(number)
        assert proxy.journal.at(Point.COMMIT) == []


@pytest.mark.parametrize("text", UNRECOGNISED)
async def test_another_way_to_commit_fails_the_run(table: Table, text: str) -> None:
    with pytest.raises(UnrecognisedTraffic):
        await commit_unrecognised(table, text)


@pytest.mark.parametrize("text", NOT_A_COMMIT)
async def test_what_does_not_commit_is_not_taken_for_it(table: Table, text: str) -> None:
    number = table.fresh()
    async with MySQLProxy(table.host, table.port) as proxy, table.client(proxy.port) as client:
        await begin(client, number)
        await query(client, text.format(number))
        assert not table.has(number)
        assert proxy.journal.at(Point.COMMIT, Point.UNRECOGNISED) == []


async def test_a_commit_prepared_by_text_fails_the_run(table: Table) -> None:
    with pytest.raises(UnrecognisedTraffic, match="EXECUTE"):
        await commit_unrecognised(table, "PREPARE s FROM 'COMMIT'", "EXECUTE s")


async def test_a_commit_prepared_by_the_protocol_is_unrecognised(table: Table) -> None:
    number = table.fresh()
    proxy = MySQLProxy(table.host, table.port)
    await proxy.__aenter__()
    async with table.client(proxy.port) as client:
        await begin(client, number)
        await client._execute_command(COMMAND.COM_STMT_PREPARE, b"COMMIT")
        statement = (await client._read_packet())._data[1:5]
        await client._execute_command(COMMAND.COM_STMT_EXECUTE, statement + b"\x00\x01\x00\x00\x00")
        await client._read_packet()
        assert table.has(number)
    with pytest.raises(UnrecognisedTraffic, match="COM_STMT_EXECUTE"):
        await proxy.__aexit__(None, None, None)


async def test_a_commit_behind_query_attributes_is_recognised(table: Table) -> None:
    number = table.fresh()
    async with MySQLProxy(table.host, table.port) as proxy:
        async with table.client(proxy.port, client_flag=1 << 27) as client:
            for text in ("BEGIN", f"INSERT INTO t VALUES ({number})", "COMMIT"):
                await client._execute_command(COMMAND.COM_QUERY, b"\x00\x01" + text.encode())
                await client._read_packet()
        assert [e.bytes for e in proxy.journal.at(Point.COMMIT)] == [13]
        assert table.has(number)


@pytest.mark.parametrize("deprecate_eof", [0, 1 << 24])
async def test_answers_of_every_shape_end_where_they_end(table: Table, deprecate_eof: int) -> None:
    """Raw commands, each read to its end by the count of its packets; the proxy must count one answer each."""
    eof = 0 if deprecate_eof else 1
    select = 1 + 1 + eof + 2 + 1
    commands = [
        (COMMAND.COM_PING, b"", 1),
        (COMMAND.COM_QUERY, b"SELECT 1 UNION SELECT 2", select),
        (COMMAND.COM_QUERY, b"SELECT 1 UNION SELECT 2; DO 1; SELECT 3 UNION SELECT 4", 2 * select + 1),
        (COMMAND.COM_QUERY, b"no such statement", 1),
        (COMMAND.COM_STATISTICS, b"", 1),
        (COMMAND.COM_INIT_DB, str(table.dsn.database).encode(), 1),
        (COMMAND.COM_SET_OPTION, b"\x00\x00", 1),
        (COMMAND.COM_STMT_PREPARE, b"SELECT ? UNION SELECT ?", 1 + 2 + eof + 1 + eof),
    ]
    async with MySQLProxy(table.host, table.port) as proxy:
        async with table.client(proxy.port, client_flag=deprecate_eof) as client:
            connection = proxy.connection_of(client.thread_id())
            before = proxy.round_trips(connection)
            for done, (command, argument, packets) in enumerate(commands, 1):
                await client._execute_command(command, argument)
                for _ in range(packets):
                    await raw_packet(client)
                assert proxy.round_trips(connection) - before == done
        await proxy.journal.wait_for(lambda e: e.point is Point.SERVER_CLOSED, DEADLINE_S)


async def raw_packet(client: aiomysql.Connection) -> bytes:
    header = await asyncio.wait_for(client._reader.readexactly(4), DEADLINE_S)
    return bytes(await client._reader.readexactly(int.from_bytes(header[:3], "little")))

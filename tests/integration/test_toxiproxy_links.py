"""How connections of the fault proxy end, whatever either side does; nothing may be left behind.

A fake server stands where MySQL cannot be made to behave so.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pymysql.err import OperationalError

from tests.support.proxied import DEADLINE_S, Table, query
from toxiproxy import (
    CutBeforeCommit,
    DropCommitOk,
    End,
    HoldCommit,
    MySQLProxy,
    Point,
    SilentConnect,
    UnfiredFault,
    UnrecognisedTraffic,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from orbit.sandbox import MySQLServer

GREETING = b"\x0a9.7.4\x00\x07\x00\x00\x00abcdefgh\x00\xff\xff\xff\x02\x00\xff\xff\x15"
GREETING += bytes(10) + b"ijklmnopqrst\x00plugin\x00"
TIME_WAIT = "06"  # proc_net_tcp(5) has the states of the kernel's tcp_states.h


@pytest.fixture(scope="module")
def table(mysql: MySQLServer) -> Iterator[Table]:
    database = mysql.create_database("toxiproxy")
    table = Table(database.admin)
    table.create()
    yield table
    mysql.drop_database(database)


@asynccontextmanager
async def fake_server(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """The port of a server that does what `serve` says."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def sockets(port: int) -> list[str]:
    """The states of the TCP sockets at or towards this local port, but for those that only their timer keeps."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [state for _, local, remote, state, *_ in lines if _at(port, local, remote) and state != TIME_WAIT]


def _at(port: int, *addresses: str) -> bool:
    return any(int(address.partition(":")[2], 16) == port for address in addresses)


def reset(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def test_nothing_is_left_behind(table: Table) -> None:
    tasks = asyncio.all_tasks()
    async with MySQLProxy(table.host, table.port) as proxy:
        proxy.arm(DropCommitOk(End.SILENCE))
        proxy.arm(CutBeforeCommit(End.SILENCE, nth=2))
        proxy.arm(HoldCommit(asyncio.Event(), nth=3))
        work = [asyncio.create_task(table.insert_and_commit(proxy.port, table.fresh())) for _ in range(3)]
        for armed in proxy.armory.unfired():
            await armed.wait(DEADLINE_S)
        proxy.arm(SilentConnect())
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        await proxy.journal.wait_for(lambda e: e.fired == "SilentConnect", DEADLINE_S)
    assert await asyncio.gather(*work) == [2013] * 3
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    assert asyncio.all_tasks() <= tasks
    # Not this process's open files, of which other connections of the test session come and go at any time.
    async with asyncio.timeout(DEADLINE_S):
        while sockets(proxy.port):
            await asyncio.sleep(0.01)
    await table.until_nobody_is_connected()


async def test_a_client_that_says_no_more_still_gets_its_answer(table: Table) -> None:
    async with MySQLProxy(table.host, table.port) as proxy, table.client(proxy.port) as client:
        client._writer.write(b"\x16\x00\x00\x00\x03SELECT SLEEP(0.05), 7")
        client._writer.write_eof()
        answer = await asyncio.wait_for(client._reader.read(), DEADLINE_S)
        assert b"\x04\x00\x00\x05\x010\x017" in answer
        await proxy.journal.wait_for(lambda e: e.point is Point.SERVER_CLOSED, DEADLINE_S)


async def test_the_upstream_is_not_ended_before_it_has_answered() -> None:
    # A server that sees its client's end may give up what it is doing; a COMMIT under way must not be given up.
    still_open = asyncio.Event()
    client_left = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(len(GREETING).to_bytes(3, "little") + b"\x00" + GREETING)
        await reader.readexactly(4 + 32)
        writer.write(b"\x07\x00\x00\x02" + bytes(7))
        await reader.readexactly(4 + 9)
        await client_left.wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.1)
        still_open.set()
        writer.write(b"\x07\x00\x00\x01" + bytes(7))
        assert await asyncio.wait_for(reader.read(1), DEADLINE_S) == b""
        writer.close()

    async with fake_server(serve) as port, MySQLProxy("127.0.0.1", port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        await reader.readexactly(4 + len(GREETING))
        writer.write(b"\x20\x00\x00\x01" + (0x200).to_bytes(4, "little") + bytes(28))
        await reader.readexactly(4 + 7)
        writer.write(b"\x09\x00\x00\x00\x03SELECT 1")
        await proxy.journal.wait_for(lambda e: e.point is Point.COMMAND, DEADLINE_S)
        writer.transport.abort()
        await proxy.journal.wait_for(lambda e: e.point is Point.CLIENT_CLOSED, DEADLINE_S)
        client_left.set()
        await asyncio.wait_for(still_open.wait(), DEADLINE_S)
        await proxy.journal.wait_for(lambda e: e.point is Point.SERVER_CLOSED, DEADLINE_S)


async def test_a_client_that_vanishes_has_its_transaction_rolled_back(table: Table) -> None:
    number = table.fresh()
    async with MySQLProxy(table.host, table.port) as proxy, table.client(proxy.port) as client:
        await query(client, f"INSERT INTO t VALUES ({number})")
        reset(client._writer)
        await table.until_thread_ends(client.thread_id())
        assert not table.has(number)
        await proxy.journal.wait_for(lambda e: e.point is Point.CLIENT_CLOSED, DEADLINE_S)


async def test_a_client_may_leave_in_the_middle_of_a_packet(table: Table) -> None:
    async with MySQLProxy(table.host, table.port) as proxy, table.client(proxy.port) as client:
        client._writer.write(b"\x20\x00\x00\x00\x03SELECT")
        client._writer.close()
        await table.until_thread_ends(client.thread_id())


async def test_a_client_may_leave_before_it_logs_in(table: Table) -> None:
    async with MySQLProxy(table.host, table.port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        assert await reader.read(4)
        reset(writer)
        await proxy.journal.wait_for(lambda e: e.point is Point.SERVER_CLOSED, DEADLINE_S)


async def test_a_session_that_mysql_ends_is_ended_for_the_client(table: Table) -> None:
    async with MySQLProxy(table.host, table.port) as proxy, table.client(proxy.port) as client:
        await query(client, "SET SESSION wait_timeout = 1")
        unsolicited = await proxy.journal.wait_for(lambda e: e.point is Point.UNSOLICITED, DEADLINE_S)
        assert unsolicited.errno == 4031
        assert await asyncio.wait_for(client._reader.read(), DEADLINE_S)


async def test_many_connections_at_once(table: Table) -> None:
    numbers = [table.fresh() for _ in range(40)]
    async with MySQLProxy(table.host, table.port) as proxy:
        armed = proxy.arm(DropCommitOk(nth=20))
        results = await asyncio.gather(*(table.insert_and_commit(proxy.port, n) for n in numbers))
        assert armed.fired
        assert sorted(results, key=bool) == [None] * 39 + [2013]
        assert {e.connection for e in proxy.journal} == set(range(1, 41))
    assert table.run("SELECT COUNT(*) FROM t WHERE id BETWEEN %s AND %s", numbers[0], numbers[-1]) == [(40,)]


async def test_an_upstream_that_is_not_there_is_a_broken_connection(table: Table) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        async with MySQLProxy("127.0.0.1", unused.getsockname()[1]) as proxy:
            with pytest.raises(OperationalError):
                await table.insert_and_commit(proxy.port, table.fresh())
            assert [e.point for e in proxy.journal] == [Point.ACCEPTED, Point.UPSTREAM_REFUSED]


async def test_a_reset_of_the_upstream_is_a_reset_for_the_client() -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(len(GREETING).to_bytes(3, "little") + b"\x00" + GREETING)
        await writer.drain()
        reset(writer)

    async with fake_server(serve) as port, MySQLProxy("127.0.0.1", port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), DEADLINE_S)
        writer.transport.abort()


async def unreadable(greeting: bytes) -> None:
    """Connect through a proxy to a server that says this; see the connection broken; raises."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        await reader.read()
        writer.close()

    async with fake_server(serve) as port, MySQLProxy("127.0.0.1", port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), DEADLINE_S)
        writer.transport.abort()


async def test_a_server_that_is_not_mysql_fails_the_run() -> None:
    with pytest.raises(UnrecognisedTraffic, match="the greeting is not one of MySQL's protocol 10"):
        await unreadable(b"\x05\x00\x00\x00hello")


async def test_a_cancelled_body_is_not_hidden_and_nothing_is_left(table: Table) -> None:
    tasks = asyncio.all_tasks()

    async def body() -> None:
        async with MySQLProxy(table.host, table.port) as proxy, table.client(proxy.port) as client:
            proxy.arm(DropCommitOk())
            await query(client, "SELECT SLEEP(100)")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await body()
    assert asyncio.all_tasks() == tasks


async def test_a_context_may_be_left_while_a_fault_is_at_work(table: Table) -> None:
    async def body() -> None:
        async with MySQLProxy(table.host, table.port) as proxy:
            proxy.arm(DropCommitOk(nth=100))
            work.append(asyncio.create_task(table.insert_and_commit(proxy.port, table.fresh())))
            await proxy.journal.wait_for(lambda e: e.point is Point.GREETING, DEADLINE_S)

    work: list[asyncio.Task[int | None]] = []
    with pytest.raises(UnfiredFault):
        await body()
    await asyncio.wait(work)
    assert work[0].exception() is not None or work[0].result() is not None

"""Connections: the session they set up, what they refuse, which host they take; values there and back."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from orbit.mysql.dsn import SSLMode, SSLOptions
from orbit.mysql.errors import Kind, NotCommitted, Stage
from orbit.mysql.lane import Lane, Outcome
from orbit.mysql.statement import Statement
from orbit.mysql.times import DEFAULT_TIMES, LaneTimes
from tests.support.lanes import PATIENCE_S, LaneBench, be_patient, inserting, lane_bench, until
from toxiproxy import CutInHandshake, MySQLProxy, Point, SilentConnect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from orbit.mysql.dsn import DSN
    from orbit.mysql.transaction import Transaction
    from orbit.sandbox import MySQLServer

BUDGET_S = 10.0


@pytest.fixture
async def bench(mysql: MySQLServer) -> AsyncIterator[LaneBench]:
    async with lane_bench(mysql) as made:
        yield made


async def _fetch_one(lane: Lane, text: str, **parameters: Any) -> tuple[Any, ...]:
    async def work(transaction: Transaction) -> tuple[Any, ...] | None:
        return await transaction.fetch_one(Statement(text, tuple(parameters)), parameters)

    row = await lane.read(work, budget_s=BUDGET_S)
    assert row is not None
    return row


async def _refused(lane: Lane) -> NotCommitted:
    with pytest.raises(NotCommitted) as caught:
        await lane.run(inserting("a"), budget_s=BUDGET_S)
    assert caught.value.stage is Stage.OPENING
    assert caught.value.__context__ is None
    assert lane.last_outcome is Outcome.NOT_COMMITTED
    return caught.value


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


async def test_a_session_has_the_settings_that_everything_rests_on(bench: LaneBench) -> None:
    lane = bench.lane(LaneTimes(wait_timeout_s=31, row_lock_s=4, metadata_lock_s=5))
    row = await _fetch_one(
        lane,
        "SELECT @@SESSION.autocommit, @@SESSION.transaction_isolation, @@SESSION.completion_type, @@SESSION.time_zone,"
        " @@SESSION.wait_timeout, @@SESSION.innodb_lock_wait_timeout, @@SESSION.lock_wait_timeout,"
        " @@SESSION.character_set_client, @@SESSION.character_set_results, @@SESSION.collation_connection",
    )
    assert row == (
        0,
        "READ-COMMITTED",
        "NO_CHAIN",
        "+00:00",
        31,
        4,
        5,
        "utf8mb4",
        "utf8mb4",
        "utf8mb4_0900_bin",
    )
    (mode,) = await _fetch_one(lane, "SELECT @@SESSION.sql_mode")
    assert {"STRICT_TRANS_TABLES", "NO_BACKSLASH_ESCAPES"} <= set(mode.split(","))


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_the_kernel_watches_the_link_on_either_event_loop(bench: LaneBench, loop: str) -> None:
    async def measure() -> list[int]:
        lane = Lane(bench.dsn)
        try:
            await lane.open()
            assert lane._connection is not None
            assert lane._connection._writer is not None
            link = lane._connection._writer.transport.get_extra_info("socket")
            return [
                link.getsockopt(level, option)
                for level, option in (
                    (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
                    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
                    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
                    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
                    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
                )
            ]
        finally:
            await lane.close()

    run = asyncio.run if loop == "asyncio" else uvloop.run
    assert await asyncio.to_thread(run, measure()) == [1, 5, 2, 3, 5000]


@pytest.mark.parametrize(
    "value",
    [
        "",
        'it\'s "quoted" `so`',
        "back\\slash \\' \\\\",
        "\x00\x01\n\r\t\x1a\x7f",
        "100% %s %(x)s %%",
        "e\u0301 ﬁ ß 你好 😀 \u2028 \ufeff \U0010ffff",
        "'; DROP TABLE t; --",
        "x" * 300_000 + "'\\" * 100_000,
        b"",
        bytes(range(256)),
        0,
        -(2**63),
        2**64 - 1,
        Decimal("18446744073709551617.1000"),
        1.5,
        -2.5e-300,
        datetime(2026, 1, 2, 3, 4, 5, 678901),  # noqa: DTZ001 - what the driver returns
        None,
    ],
    ids=lambda value: repr(value)[:24],
)
async def test_a_value_comes_back_as_it_went(bench: LaneBench, value: Any) -> None:
    expression = "CAST(%s AS DATETIME(6))" if isinstance(value, datetime) else "%s"
    (back,) = await _fetch_one(bench.lane(), f"SELECT {expression}", value=value)
    assert back == value
    assert type(back) is type(value)


async def test_a_time_with_a_zone_is_stored_in_utc(bench: LaneBench) -> None:
    moment = datetime.fromisoformat("2026-01-02T01:30:00+03:00")
    (back,) = await _fetch_one(bench.lane(), "SELECT CAST(%s AS DATETIME(6))", value=moment)
    assert back.replace(tzinfo=UTC) == moment


@pytest.mark.parametrize(
    ("change", "errno"),
    [
        (lambda dsn: dsn.with_account(dsn.user, "wrong"), 1045),
        (lambda dsn: dsn.with_database("absent"), 1044),
    ],
)
async def test_a_wrong_account_is_a_matter_of_configuration(
    bench: LaneBench, change: Callable[[DSN], DSN], errno: int
) -> None:
    failure = await _refused(bench.lane(dsn=change(bench.dsn)))
    assert (failure.errno, failure.kind) == (errno, Kind.CONFIGURATION)


async def test_an_unknown_database_is_a_matter_of_configuration(bench: LaneBench) -> None:
    failure = await _refused(bench.lane(dsn=bench.admin.with_database("absent")))
    assert (failure.errno, failure.kind) == (1049, Kind.CONFIGURATION)


async def test_a_port_where_nobody_listens_is_tried_again_later(bench: LaneBench) -> None:
    failure = await _refused(bench.lane(dsn=bench.dsn.with_host("127.0.0.1", _free_port())))
    assert (failure.errno, failure.kind, failure.reason) == (2003, Kind.RECONNECT, "connection refused")


async def test_an_unknown_host_is_named_as_such(bench: LaneBench) -> None:
    failure = await _refused(bench.lane(dsn=bench.dsn.with_host("absent.invalid", 3306)))
    assert (failure.errno, failure.kind, failure.reason) == (2003, Kind.RECONNECT, "the host name is unknown")


async def test_a_server_that_accepts_and_says_nothing_is_left_in_time(bench: LaneBench) -> None:
    async with _proxied(bench) as (proxy, dsn):
        silent = proxy.arm(SilentConnect())
        lane = bench.lane(replace(DEFAULT_TIMES, connect_s=0.2), dsn=dsn)
        async with asyncio.timeout(PATIENCE_S):
            failure = await _refused(lane)
        assert silent.fired
        assert (failure.errno, failure.kind, failure.reason) == (None, Kind.RECONNECT, "no answer in time")
        be_patient(lane)
        await lane.run(inserting("a"), budget_s=BUDGET_S)
    assert bench.ids() == ["a"]


@pytest.mark.parametrize("at", ["greeting", "login"])
async def test_a_login_that_breaks_off_is_not_committed(bench: LaneBench, at: Any) -> None:
    async with _proxied(bench) as (proxy, dsn):
        cut = proxy.arm(CutInHandshake(at=at))
        lane = bench.lane(dsn=dsn)
        failure = await _refused(lane)
        assert cut.fired
        assert (failure.errno, failure.kind) == (2013, Kind.RECONNECT)
        await lane.run(inserting("a"), budget_s=BUDGET_S)


async def test_a_cancellation_while_connecting_leaves_nothing_behind(bench: LaneBench) -> None:
    async with _proxied(bench) as (proxy, dsn):
        silent = proxy.arm(SilentConnect())
        lane = bench.lane(dsn=dsn)
        task = asyncio.create_task(lane.run(inserting("a"), budget_s=BUDGET_S))
        await silent.wait(PATIENCE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert lane.last_outcome is Outcome.NOT_COMMITTED
        await lane.run(inserting("a"), budget_s=BUDGET_S)
    assert bench.ids() == ["a"]


@asynccontextmanager
async def _proxied(bench: LaneBench) -> AsyncIterator[tuple[MySQLProxy, DSN]]:
    async with MySQLProxy(*bench.dsn.hosts[0]) as proxy:
        yield proxy, bench.dsn.with_host("127.0.0.1", proxy.port)


@asynccontextmanager
async def _greeter(version: str) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server that says its greeting (Protocol::HandshakeV10) and notes what it is answered."""
    answers: list[bytes] = []
    capabilities = 0x8001F7DF | 0x00080000
    greeting = (
        b"\x0a"
        + version.encode()
        + b"\x00"
        + (7).to_bytes(4, "little")
        + b"saltsalt\x00"
        + (capabilities & 0xFFFF).to_bytes(2, "little")
        + b"\x2d\x02\x00"
        + (capabilities >> 16 & 0xFFFF).to_bytes(2, "little")
        + b"\x15"
        + bytes(10)
        + b"saltsaltsalt\x00caching_sha2_password\x00"
    )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(len(greeting).to_bytes(3, "little") + b"\x00" + greeting)
        answers.append(await reader.read())
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], answers


async def test_mariadb_is_refused_before_any_credential_is_sent(bench: LaneBench) -> None:
    async with _greeter("5.5.5-10.11.6-MariaDB-0+deb12u1") as (port, answers):
        failure = await _refused(bench.lane(dsn=bench.dsn.with_host("127.0.0.1", port)))
        assert (failure.kind, failure.reason) == (Kind.CONFIGURATION, "the server is MariaDB, not MySQL")
        await until(lambda: bool(answers))
    assert answers == [b""]


@pytest.mark.parametrize("mode", [SSLMode.REQUIRED, SSLMode.VERIFY_CA, SSLMode.VERIFY_IDENTITY])
async def test_nothing_is_sent_in_plain_text_when_tls_was_asked_for(bench: LaneBench, mode: SSLMode) -> None:
    async with _proxied(bench) as (proxy, dsn):
        failure = await _refused(bench.lane(dsn=replace(dsn, ssl=SSLOptions(mode))))
        assert (failure.kind, failure.reason) == (Kind.CONFIGURATION, "the server offers no TLS")
        await proxy.journal.wait_for(lambda entry: entry.point is Point.CLIENT_CLOSED, PATIENCE_S)
        assert not proxy.journal.at(Point.LOGIN, Point.REFUSED)


@pytest.fixture
async def authority(bench: LaneBench, tmp_path: Path) -> Path:
    """The certificate authority of the server, as its TLS handshake shows it."""
    lane = bench.lane(dsn=replace(bench.dsn, ssl=SSLOptions(SSLMode.REQUIRED)))
    await lane.open()
    assert lane._connection is not None
    assert lane._connection._writer is not None
    # Public from Python 3.13 on, there before.
    chain = lane._connection._writer.transport.get_extra_info("ssl_object")._sslobj.get_unverified_chain()
    path = tmp_path / "ca.pem"
    path.write_text("".join(certificate.public_bytes() for certificate in chain[1:]))
    return path


@pytest.mark.parametrize("mode", [SSLMode.REQUIRED, SSLMode.VERIFY_CA])
async def test_a_session_is_encrypted_when_asked_for(bench: LaneBench, authority: Path, mode: SSLMode) -> None:
    ca = None if mode is SSLMode.REQUIRED else str(authority)
    lane = bench.lane(dsn=replace(bench.dsn, ssl=SSLOptions(mode, ca)))
    row = await _fetch_one(
        lane, "SELECT VARIABLE_VALUE FROM performance_schema.session_status WHERE VARIABLE_NAME = 'Ssl_version'"
    )
    assert row[0].startswith("TLSv1.")
    await lane.run(inserting("a"), budget_s=BUDGET_S)
    await lane.close()


async def test_a_certificate_without_the_hosts_name_fails_verify_identity(bench: LaneBench, authority: Path) -> None:
    options = SSLOptions(SSLMode.VERIFY_IDENTITY, str(authority))
    failure = await _refused(bench.lane(dsn=replace(bench.dsn, ssl=options)))
    assert (failure.kind, failure.reason) == (Kind.CONFIGURATION, "the server's certificate is not trusted")


async def test_a_certificate_of_another_authority_fails_verify_ca(bench: LaneBench) -> None:
    failure = await _refused(bench.lane(dsn=replace(bench.dsn, ssl=SSLOptions(SSLMode.VERIFY_CA))))
    assert (failure.kind, failure.reason) == (Kind.CONFIGURATION, "the server's certificate is not trusted")


@pytest.mark.parametrize("content", [None, "no certificate"])
async def test_an_unusable_ca_file_is_named(bench: LaneBench, tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    failure = await _refused(bench.lane(dsn=replace(bench.dsn, ssl=SSLOptions(SSLMode.VERIFY_CA, str(path)))))
    assert (failure.kind, failure.reason) == (Kind.CONFIGURATION, "the file of ssl_ca is not usable")


async def test_a_first_login_without_tls_works(bench: LaneBench) -> None:
    """The password's first use makes caching_sha2_password ask for it whole: RSA, by the driver's extra `rsa`."""
    bench.sql("FLUSH PRIVILEGES")
    await bench.lane().run(inserting("a"), budget_s=BUDGET_S)


async def test_a_host_that_does_not_answer_is_passed_over(bench: LaneBench) -> None:
    async with _proxied(bench) as (proxy, silent):
        proxy.arm(SilentConnect())
        hosts = (("127.0.0.1", _free_port()), silent.hosts[0], bench.dsn.hosts[0])
        lane = bench.lane(replace(DEFAULT_TIMES, connect_s=60.0), dsn=replace(bench.dsn, hosts=hosts))
        # The silent host may take its share of the budget and no more.
        await lane.run(inserting("a"), budget_s=4.0)
    assert bench.ids() == ["a"]


async def test_the_host_that_served_last_is_asked_first(bench: LaneBench) -> None:
    async with _proxied(bench) as (proxy, first):
        cut = proxy.arm(CutInHandshake(at="greeting"))
        lane = bench.lane(dsn=replace(bench.dsn, hosts=(first.hosts[0], bench.dsn.hosts[0])))
        await lane.run(inserting("a"), budget_s=BUDGET_S)
        lane._used_at -= DEFAULT_TIMES.idle_s + 1
        await lane.run(inserting("b"), budget_s=BUDGET_S)
        assert cut.fired
        assert lane.tally.opened == 2
        assert len(proxy.journal.at(Point.ACCEPTED)) == 1


async def test_of_several_failures_one_that_may_pass_is_reported(bench: LaneBench) -> None:
    async with _greeter("11.8.2-MariaDB") as (mariadb, _):
        hosts = (("127.0.0.1", mariadb), ("127.0.0.1", _free_port()))
        failure = await _refused(bench.lane(dsn=replace(bench.dsn, hosts=hosts)))
    assert (failure.errno, failure.kind) == (2003, Kind.RECONNECT)

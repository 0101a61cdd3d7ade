"""The sandbox's own MySQL: killed, paused, restarted, and gone with whoever started it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pymysql
import pytest

from orbit.mysql.dsn import DSN
from orbit.sandbox import NoMySQL, SandboxError, debian, mysql_server
from orbit.sandbox.cache import Cache, cache_root
from orbit.sandbox.mysqld import MysqldProcess, identify, template
from orbit.sandbox.ports import free_port
from orbit.sandbox.server import Control, MySQLServer, admin_cursor
from tests.support.mysql import WITHOUT_DOCKER
from tests.support.processes import wait_until, wait_until_gone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orbit.sandbox.mysqld import MysqldProgram


def control(server: MySQLServer) -> Control:
    assert server.control is not None
    return server.control


def ask(dsn: DSN, statement: str) -> object:
    with admin_cursor(dsn) as cursor:
        cursor.execute(statement)
        row = cursor.fetchone()
    assert row is not None
    return row[0]


def answers(dsn: DSN) -> bool:
    try:
        ask(dsn, "SELECT 1")
    except pymysql.MySQLError:
        return False
    return True


def connect_refused(dsn: DSN) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(dsn.hosts[0]) != 0


def test_the_settings_that_durability_rests_on_are_set(own_mysql: MySQLServer) -> None:
    with admin_cursor(own_mysql.admin) as cursor:
        cursor.execute("SELECT @@innodb_flush_log_at_trx_commit, @@sync_binlog, @@bind_address")
        assert cursor.fetchone() == (1, 1, "127.0.0.1")


def test_nobody_gets_in_without_the_password_of_this_run(own_mysql: MySQLServer) -> None:
    for user in ("root", own_mysql.admin.user):
        with pytest.raises(pymysql.OperationalError) as refused:
            ask(own_mysql.admin.with_account(user, ""), "SELECT 1")
        assert refused.value.args[0] == 1045


def test_a_committed_row_survives_kill_and_start_on_the_same_port(own_mysql: MySQLServer) -> None:
    database = own_mysql.create_database("kept")
    with admin_cursor(database.admin) as cursor:
        cursor.execute("CREATE TABLE t (n INT PRIMARY KEY)")
        cursor.execute("INSERT INTO t VALUES (7)")
    before = own_mysql.pid

    control(own_mysql).kill()

    assert control(own_mysql).pid is None
    assert connect_refused(database.admin)
    control(own_mysql).start()
    assert control(own_mysql).pid not in {None, before}
    assert ask(database.admin, "SELECT n FROM t") == 7


def test_stop_shuts_down_cleanly_and_start_brings_the_same_server_back(own_mysql: MySQLServer) -> None:
    uuid = ask(own_mysql.admin, "SELECT @@server_uuid")

    control(own_mysql).stop()

    assert connect_refused(own_mysql.admin)
    control(own_mysql).start()
    assert ask(own_mysql.admin, "SELECT @@server_uuid") == uuid


def test_a_paused_server_accepts_and_does_not_answer_until_it_is_resumed(own_mysql: MySQLServer) -> None:
    control(own_mysql).pause()
    with socket.create_connection(own_mysql.admin.hosts[0], timeout=5) as dark:
        dark.settimeout(0.5)
        with pytest.raises(TimeoutError):
            dark.recv(1)

        control(own_mysql).resume()

        dark.settimeout(30)
        assert dark.recv(4)[3:] == b"\0"  # the first packet of the handshake: sequence 0


def test_a_paused_server_can_be_ended(own_mysql: MySQLServer) -> None:
    pid = own_mysql.pid
    assert pid is not None
    control(own_mysql).pause()

    own_mysql.close()

    wait_until_gone(pid)


def test_starting_a_running_server_is_an_error(own_mysql: MySQLServer) -> None:
    with pytest.raises(SandboxError, match="runs already"):
        control(own_mysql).start()


def test_a_package_that_the_archive_did_not_sign_is_refused(tmp_path: Path) -> None:
    nobodys_keys = tmp_path / "keyring.gpg"
    nobodys_keys.touch()
    facts = replace(debian.read_facts(os.environ), keyring=nobodys_keys)
    folder = tmp_path / "program"
    folder.mkdir()

    with pytest.raises(SandboxError, match=r"apt-get failed: .*not signed"):
        debian.install(folder, facts, on_progress=print)

    assert list(folder.iterdir()) == []


def test_two_servers_are_two_servers(own_mysql: MySQLServer) -> None:
    with mysql_server(os.environ, own=True) as other:
        assert other.admin.hosts != own_mysql.admin.hosts
        assert ask(other.admin, "SELECT @@server_uuid") != ask(own_mysql.admin, "SELECT @@server_uuid")


@pytest.fixture
def local() -> Iterator[MysqldProcess]:
    """A server that is a process of this machine; these tests look at its files."""
    with mysql_server({**os.environ, **WITHOUT_DOCKER}, own=True) as server:
        assert isinstance(server.control, MysqldProcess)
        yield server.control


def test_nobody_gets_in_without_a_password_by_the_servers_socket_either(local: MysqldProcess) -> None:
    # By a file descriptor: a socket's path has 107 bytes at most, and a checkout may lie deeper.
    folder = os.open(local._data, os.O_RDONLY)
    try:
        with pytest.raises(pymysql.OperationalError) as refused:
            pymysql.connect(unix_socket=f"/proc/self/fd/{folder}/mysql.sock", user="root", password="")
    finally:
        os.close(folder)

    assert refused.value.args[0] == 3118  # ER_ACCOUNT_HAS_BEEN_LOCKED


def test_a_server_that_does_not_start_shows_the_end_of_its_log(local: MysqldProcess) -> None:
    local.stop()
    (local._data / "mysql.ibd").write_bytes(b"\0" * 4096)

    with pytest.raises(SandboxError) as failure:
        local.start()

    assert "mysqld ended with" in str(failure.value)
    assert "[ERROR]" in str(failure.value)
    assert local.pid is None


def test_a_version_is_initialised_once_and_its_template_is_never_run(local: MysqldProcess, tmp_path: Path) -> None:
    cache = Cache(tmp_path)

    first = template(local.program, cache)
    files = {path: path.stat().st_mtime_ns for path in first.rglob("*")}
    assert template(local.program, cache) == first
    started = MysqldProcess(local.program, cache)
    started.close()

    assert not (first / "data/auto.cnf").exists()
    assert {path: path.stat().st_mtime_ns for path in first.rglob("*")} == files
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_taken_port_is_tried_again_on_another(local: MysqldProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = local.admin.hosts[0][1]
    offered = iter([taken, free_port()])
    monkeypatch.setattr("orbit.sandbox.mysqld.free_port", lambda: next(offered))

    other = MysqldProcess(local.program, Cache(cache_root(os.environ)))

    try:
        assert other.admin.hosts[0][1] != taken
        assert answers(other.admin)
    finally:
        other.close()


OWNER = """
import os, sys, threading
from orbit.sandbox import mysql_server
servers = []
# A thread that ends: the server must live as long as the process, not as the thread.
starter = threading.Thread(target=lambda: servers.append(mysql_server(os.environ, own=True)))
starter.start()
starter.join()
print(servers[0].pid, servers[0].admin.render(), servers[0].control.log.parent, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        yield process
        process.kill()


def test_the_server_dies_with_a_killed_owner_and_its_folder_goes_with_the_next_run(
    owner: subprocess.Popen[str],
) -> None:
    assert owner.stdout is not None
    pid, dsn, folder = owner.stdout.readline().split()
    assert answers(DSN.parse(dsn, require_database=False))
    assert Path(folder).is_dir()

    owner.send_signal(signal.SIGKILL)
    owner.wait()

    wait_until_gone(int(pid))
    wait_until(lambda: connect_refused(DSN.parse(dsn, require_database=False)), "the port to close")
    Cache(cache_root(os.environ)).new_run().remove()
    assert not Path(folder).exists()


@pytest.fixture
def mysqld_on_path(local: MysqldProcess, tmp_path: Path) -> Path:
    """A folder with a `mysqld` in it that is the very program of this machine's way."""
    return script(tmp_path / "bin", local.program)


def script(folder: Path, program: MysqldProgram) -> Path:
    folder.mkdir()
    words = " ".join(f"'{word}'" for word in program.command)
    options = " ".join(f"'{word}'" for word in program.options)
    file = folder / "mysqld"
    file.write_text(f'#!/bin/sh\nexec {words} "$@" {options}\n')
    file.chmod(0o755)
    return folder


def only_path(folder: Path, cache: Path) -> dict[str, str]:
    """An environment without a server, a Docker engine or apt."""
    return {
        "PATH": str(folder),
        **WITHOUT_DOCKER,
        "ORBIT_SANDBOX_CACHE": str(cache),
    }


def test_a_mysqld_on_path_is_used_and_named(mysqld_on_path: Path, tmp_path: Path) -> None:
    said: list[str] = []
    with mysql_server(only_path(mysqld_on_path, tmp_path / "cache"), on_progress=said.append) as server:
        host, port = server.admin.hosts[0]
        assert said == [f"MySQL: way 3, the mysqld on PATH: MySQL {server.version} at {host}:{port}"]
        assert ask(server.admin, "SELECT VERSION()") == server.version


def fake_mysqld(folder: Path, banner: str) -> Path:
    folder.mkdir()
    file = folder / "mysqld"
    file.write_text(f"#!/bin/sh\necho '{banner}'\n")
    file.chmod(0o755)
    return folder


def test_where_no_way_works_the_error_names_all_four_and_refuses_mariadb_by_name(tmp_path: Path) -> None:
    folder = fake_mysqld(
        tmp_path / "bin", "mysqld  Ver 10.11.6-MariaDB-0+deb12u1 for debian-linux-gnu on x86_64 (Debian 12)"
    )

    with pytest.raises(NoMySQL) as failure:
        mysql_server(only_path(folder, tmp_path / "cache"))

    assert str(failure.value) == (
        "no way to a real MySQL worked\n"
        "  way 1, the server of ORBIT_SANDBOX_MYSQL_DSN: ORBIT_SANDBOX_MYSQL_DSN is not set\n"
        "  way 2, a container by the Docker engine: no Docker engine answers\n"
        f"  way 3, the mysqld on PATH: {folder}/mysqld cannot be used: it is MariaDB 10.11.6-MariaDB-0+deb12u1, "
        "which is not MySQL: MySQL 8.4 or newer is needed\n"
        "  way 4, Debian's mysql-server-core downloaded by apt: apt-get and dpkg and dpkg-deb not found: "
        "not a Debian machine"
    )


def test_an_old_mysql_on_path_is_refused(tmp_path: Path) -> None:
    folder = fake_mysqld(tmp_path / "bin", "mysqld  Ver 8.0.46 for Linux on x86_64 (MySQL Community Server - GPL)")

    with pytest.raises(SandboxError, match=r"it is MySQL 8\.0\.46, and 8\.4 or newer is needed"):
        identify((str(folder / "mysqld"),))


def test_a_server_named_in_the_environment_is_used_and_left_as_it_was(own_mysql: MySQLServer) -> None:
    environ = {"ORBIT_SANDBOX_MYSQL_DSN": own_mysql.admin.render()}
    seen = "SELECT (SELECT COUNT(*) FROM information_schema.schemata) + (SELECT COUNT(*) FROM mysql.user)"
    before = ask(own_mysql.admin, seen)

    with mysql_server(environ) as server:
        database = server.create_database("visitor")
        account = server.create_account(database, ("SELECT",))
        assert server.way.startswith("way 1, the server of ORBIT_SANDBOX_MYSQL_DSN: MySQL ")
        assert ask(account, "SELECT DATABASE()") == database.name
        assert ask(own_mysql.admin, seen) == before + 2  # type: ignore[operator]  # a count

    assert ask(own_mysql.admin, seen) == before


def test_a_server_in_the_environment_that_does_not_answer_is_an_error_and_no_other_way_is_tried(
    own_mysql: MySQLServer,
) -> None:
    environ = {"ORBIT_SANDBOX_MYSQL_DSN": own_mysql.admin.with_account("nobody", "wrong").render()}

    with pytest.raises(NoMySQL) as failure:
        mysql_server(environ)

    host, port = own_mysql.admin.hosts[0]
    assert str(failure.value) == (
        "no way to a real MySQL worked\n"
        "  way 1, the server of ORBIT_SANDBOX_MYSQL_DSN: "
        f"the server at {host}:{port} does not answer (OperationalError 1045)"
    )


def test_a_server_in_the_environment_is_reached_by_tls_when_its_dsn_says_so(local: MysqldProcess) -> None:
    dsn = f"{local.admin.render()}?ssl_ca={local._data}/ca.pem&ssl_mode=VERIFY_CA"

    with mysql_server({"ORBIT_SANDBOX_MYSQL_DSN": dsn}) as server:
        assert (
            ask(
                server.admin,
                "SELECT variable_value <> '' FROM performance_schema.session_status WHERE variable_name = 'Ssl_cipher'",
            )
            == 1
        )


def test_an_account_has_the_privileges_it_was_given_and_no_others(mysql: MySQLServer) -> None:
    database = mysql.create_database("mine")
    other = mysql.create_database("yours")
    account = mysql.create_account(database, ("CREATE",))
    try:
        with admin_cursor(account) as cursor:
            cursor.execute("CREATE TABLE t (n INT)")
            with pytest.raises(pymysql.OperationalError) as refused:
                cursor.execute("SELECT n FROM t")
            assert refused.value.args[0] == 1142
            with pytest.raises(pymysql.OperationalError) as refused:
                cursor.execute(f"CREATE TABLE `{other.name}`.t (n INT)")
            assert refused.value.args[0] == 1142
    finally:
        mysql.drop_database(database)
        mysql.drop_database(other)


def test_dropping_a_database_does_not_wait_for_a_transaction_that_was_left_open(mysql: MySQLServer) -> None:
    database = mysql.create_database("busy")
    account = mysql.create_account(database, ("CREATE", "SELECT", "INSERT"))
    with admin_cursor(account) as cursor:
        cursor.execute("CREATE TABLE t (n INT)")
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO t VALUES (1)")

        mysql.drop_database(database)

    assert not answers(account)

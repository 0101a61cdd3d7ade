"""`python -m toxiproxy run`, as a process of its own before a real MySQL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.proxied import DEADLINE_S, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orbit.sandbox import MySQLServer

ROOT = Path(__file__).parents[2]
# The command under the fault: insert a row through the DSN it was given, commit, say what became of it.
COMMITTER = """
import os, sys
from urllib.parse import unquote, urlsplit
import pymysql
dsn = urlsplit(os.environ["DEMO_DSN"])
connection = pymysql.connect(host=dsn.hostname, port=dsn.port, user=unquote(dsn.username),
                             password=unquote(dsn.password or ""), database=dsn.path[1:])
with connection.cursor() as cursor:
    cursor.execute("INSERT INTO t VALUES (%s)", int(sys.argv[1]))
try:
    connection.commit()
    print("committed")
except pymysql.err.OperationalError as error:
    print("lost", error.args[0])
sys.stdout.flush()
code = int(sys.argv[2])
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""
# Waits for a signal and leaves with its number. Its child, in the same group, waits too; the mask is inherited, so
# that no signal comes too early for either.
WAITER = """
import signal, subprocess, sys
wanted = {int(sys.argv[1])}
signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
code = "import signal, sys; print('child', int(signal.sigwait({int(sys.argv[1])})))"
child = subprocess.Popen([sys.executable, "-c", code, sys.argv[1]])
print("ready", flush=True)
got = signal.sigwait(wanted)
child.wait()
sys.exit(got)
"""


@pytest.fixture(scope="module")
def table(mysql: MySQLServer) -> Iterator[Table]:
    database = mysql.create_database("toxiproxy")
    table = Table(database.admin)
    table.create()
    yield table
    mysql.drop_database(database)


def arguments(*options: str, command: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", "toxiproxy", "run", "--dsn-env", "DEMO_DSN", *options, "--", *command]


def run(
    table: Table, *options: str, command: tuple[str, ...], dsn: str | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments(*options, command=command),
        cwd=ROOT,
        env=os.environ | {"DEMO_DSN": dsn if dsn is not None else table.dsn.render()},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S * 3,
        check=False,
    )


def committer(number: int, code: int = 0) -> tuple[str, ...]:
    return (sys.executable, "-c", COMMITTER, str(number), str(code))


@pytest.mark.parametrize("end", ["fin", "rst"])
def test_the_ok_is_swallowed_and_that_is_said(table: Table, end: str) -> None:
    number = table.fresh()
    done = run(table, "--fault", "drop-commit-ok", "--end", end, command=committer(number, 7))
    assert (done.returncode, done.stdout) == (7, "lost 2013\n")
    assert "MySQL has committed and answers with OK; DropCommitOk fired: the OK is swallowed" in done.stderr
    assert "in plain text only" in done.stderr
    assert table.has(number)


def test_the_commit_is_swallowed_and_that_is_said(table: Table) -> None:
    number = table.fresh()
    done = run(table, "--fault", "cut-before-commit", command=committer(number))
    assert (done.returncode, done.stdout) == (0, "lost 2013\n")
    assert (
        "COMMIT arrives, with a transaction open; CutBeforeCommit fired: it is swallowed, MySQL will never see it"
        in done.stderr
    )
    assert not table.has(number)


def test_a_command_that_a_signal_killed_has_the_shells_exit_code(table: Table) -> None:
    done = run(table, "--fault", "drop-commit-ok", command=committer(table.fresh(), -signal.SIGKILL))
    assert (done.returncode, done.stdout) == (137, "lost 2013\n")


def test_a_fault_that_never_fired_is_a_failure(table: Table) -> None:
    number = table.fresh()
    done = run(table, "--fault", "drop-commit-ok", "--nth", "2", command=committer(number))
    assert (done.returncode, done.stdout) == (1, "committed\n")
    assert "DropCommitOk was armed and never fired" in done.stderr.splitlines()[-1]
    assert table.has(number)


def test_what_cannot_be_judged_is_a_failure(table: Table) -> None:
    text = COMMITTER.replace("connection.commit()", "connection.query('BEGIN')")
    command = (sys.executable, "-c", text, str(table.fresh()), "0")
    done = run(table, "--fault", "drop-commit-ok", command=command)
    assert done.returncode == 1
    assert "unrecognised BEGIN" in done.stderr.splitlines()[-1]


def test_nothing_of_the_dsn_or_of_a_statement_is_shown(table: Table) -> None:
    done = run(table, "--fault", "drop-commit-ok", command=committer(table.fresh()))
    password = table.dsn.password
    assert not password or password not in done.stderr
    assert "VALUES" not in done.stderr


@pytest.mark.parametrize(
    ("dsn", "reason"),
    [
        ("", "DEMO_DSN is not set"),
        ("mysql://u:secret@db/d?ssl_ca=/x", "it asks for TLS"),
        ("nonsense:secret", "it is not of the form"),
    ],
)
def test_a_dsn_that_cannot_be_used_is_a_usage_error(table: Table, dsn: str, reason: str) -> None:
    done = run(table, "--fault", "drop-commit-ok", command=("true",), dsn=dsn)
    assert done.returncode == 2
    assert reason in done.stderr
    assert "secret" not in done.stderr


def test_a_command_that_is_not_there_is_said(table: Table) -> None:
    done = run(table, "--fault", "drop-commit-ok", command=("/no/such/command",))
    assert done.returncode == 1
    assert "/no/such/command cannot be run: No such file or directory" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_reach_the_command_and_its_children(table: Table, number: signal.Signals) -> None:
    command = (sys.executable, "-c", WAITER, str(int(number)))
    process = subprocess.Popen(
        arguments("--fault", "drop-commit-ok", command=command),
        cwd=ROOT,
        env=os.environ | {"DEMO_DSN": table.dsn.render()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=DEADLINE_S * 3)
    assert out == f"child {number.value}\n"
    # The command left with the signal's number; the fault had not fired, and that is what counts.
    assert process.returncode == 1
    assert "never fired" in err

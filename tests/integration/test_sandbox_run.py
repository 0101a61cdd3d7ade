"""`orbit-sandbox run`: what a command gets, whose exit code counts, and that nothing is left of any of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orbit.mysql.dsn import DSN
from orbit.sandbox.server import admin_cursor
from tests.support.processes import wait_until
from tests.support.sandbox_runs import line, rest

if TYPE_CHECKING:
    from tests.support.sandbox_runs import Runs


def refused(address: tuple[str, int]) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(address) != 0


def test_the_command_gets_the_three_variables_and_its_exit_code_counts(runs: Runs) -> None:
    script = (
        'echo "$ORBIT_URL"; echo "$ORBIT_RECEIVER_DSN"; stat -c %a "$ORBIT_CREDENTIALS_FILE"; '
        'cat "$ORBIT_CREDENTIALS_FILE"; exit 3'
    )
    process = runs.start("sh", "-c", script)

    url, dsn, mode = line(process), DSN.parse(line(process)), line(process)
    status, credentials = rest(process)

    assert status == 3
    assert mode == "600"
    assert {name: json.loads(credentials)[name] for name in ("application", "namespace", "environment", "queue")} == {
        "application": "sandbox",
        "namespace": "sandbox",
        "environment": "sandbox",
        "queue": "sandbox",
    }
    host, _, port = url.removeprefix("http://").partition(":")
    assert host == "127.0.0.1"
    assert refused((host, int(port)))
    assert refused(dsn.hosts[0])
    assert "sandbox: MySQL: way " in runs.stderr()
    runs.nothing_is_left()


def test_the_receivers_account_may_create_read_and_write_in_its_own_database_and_no_more(runs: Runs) -> None:
    gate = runs.folder / "here" / "gate"
    os.mkfifo(gate)
    process = runs.start("sh", "-c", 'echo "$ORBIT_RECEIVER_DSN"; read word < gate; exit 0')
    dsn = DSN.parse(line(process))
    with admin_cursor(dsn) as cursor:
        cursor.execute("SHOW GRANTS")
        grants = [row[0] for row in cursor.fetchall()]
    gate.write_text("go\n")

    assert rest(process)[0] == 0
    assert grants == [
        f"GRANT USAGE ON *.* TO `{dsn.user}`@`%`",
        f"GRANT SELECT, INSERT, UPDATE, CREATE ON `{dsn.database}`.* TO `{dsn.user}`@`%`",
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_without_a_command_it_prints_the_variables_and_stays_until_a_signal(runs: Runs, number: signal.Signals) -> None:
    process = runs.start()
    printed = dict(line(process).split("=", 1) for _ in range(3))
    assert list(printed) == ["ORBIT_URL", "ORBIT_CREDENTIALS_FILE", "ORBIT_RECEIVER_DSN"]
    assert Path(printed["ORBIT_CREDENTIALS_FILE"]).is_file()

    process.send_signal(number)

    assert rest(process) == (0, "")
    assert refused(DSN.parse(printed["ORBIT_RECEIVER_DSN"]).hosts[0])
    runs.nothing_is_left()


def test_without_a_command_the_end_of_the_node_is_an_error_that_says_so(runs: Runs) -> None:
    process = runs.start()
    for _ in range(3):
        line(process)
    (node,) = (pid for pid in runs.processes() if b"orbit.server.cli" in Path(f"/proc/{pid}/cmdline").read_bytes())

    os.kill(node, signal.SIGKILL)

    assert rest(process) == (1, "")
    assert "orbit serve ended with -9" in runs.stderr()
    runs.nothing_is_left()


def test_a_signal_before_everything_is_up_ends_the_start_and_leaves_nothing(runs: Runs) -> None:
    process = runs.start("echo", "never")
    wait_until(lambda: len(runs.processes()) > 1, "the sandbox to start its first process")

    process.send_signal(signal.SIGTERM)

    assert rest(process) == (128 + signal.SIGTERM, "")
    runs.nothing_is_left()


# Counts what it gets, and ends when it is told to by a file. os.write, because print may be interrupted by itself.
COUNTING = """
import os, signal, sys, time
counts = []
def count(number, frame):
    counts.append(number)
    os.write(1, signal.Signals(number).name.encode() + bytes([10]))
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, count)
os.write(1, b"ready" + bytes([10]))
while not os.path.exists("end"):
    time.sleep(0.02)
print(len(counts))
sys.exit(7)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_and_a_command_that_takes_its_time_ends_itself(
    runs: Runs, number: signal.Signals
) -> None:
    process = runs.start(sys.executable, "-c", COUNTING)
    assert line(process) == "ready"

    process.send_signal(number)

    assert line(process) == number.name
    (runs.folder / "here" / "end").touch()
    assert rest(process) == (7, "1\n")
    (runs.folder / "here" / "end").unlink()
    runs.nothing_is_left()


def test_a_second_signal_kills_a_command_that_ignores_the_first(runs: Runs) -> None:
    process = runs.start(sys.executable, "-c", COUNTING)
    assert line(process) == "ready"
    process.send_signal(signal.SIGTERM)
    assert line(process) == "SIGTERM"

    process.send_signal(signal.SIGINT)

    assert rest(process) == (128 + signal.SIGKILL, "")
    assert "sandbox: a second signal: killing the command" in runs.stderr()
    runs.nothing_is_left()


def test_ctrl_c_on_a_terminal_reaches_the_command_once(runs: Runs) -> None:
    master, slave = os.openpty()
    try:
        process = runs.start(sys.executable, "-c", COUNTING, terminal=slave)
        assert line(process) == "ready"

        os.write(master, b"\x03")

        assert line(process) == "SIGINT"
        wait_until(lambda: "sandbox: SIGINT: the command has" in runs.stderr(), "the sandbox to see its own")
        (runs.folder / "here" / "end").touch()
        assert rest(process) == (7, "1\n")
    finally:
        os.close(slave)
        os.close(master)
    (runs.folder / "here" / "end").unlink()
    runs.nothing_is_left()


def test_a_grandchild_whose_shell_is_ended_by_the_signal_may_still_finish(runs: Runs) -> None:
    # `; true` keeps the shell from becoming its last command.
    process = runs.start("sh", "-c", f"{sys.executable} -c '{COUNTING}'; true")
    assert line(process) == "ready"

    process.send_signal(signal.SIGTERM)

    assert line(process) == "SIGTERM"
    (runs.folder / "here" / "end").touch()
    assert rest(process) == (128 + signal.SIGTERM, "1\n")
    (runs.folder / "here" / "end").unlink()
    runs.nothing_is_left()


def test_what_a_command_leaves_running_is_ended_also_when_it_ran_away_and_ignores_sigterm(runs: Runs) -> None:
    runaway = "trap '' TERM; echo up; exec sleep 600"
    gate = runs.folder / "here" / "gate"
    os.mkfifo(gate)
    process = runs.start("sh", "-c", f'setsid sh -c "{runaway}" & read word < gate; exit 0')
    assert line(process) == "up"
    gate.write_text("go\n")

    assert rest(process) == (0, "")
    gate.unlink()
    runs.nothing_is_left()


def test_a_killed_sandbox_takes_its_servers_with_it(runs: Runs) -> None:
    process = runs.start()
    printed = dict(line(process).split("=", 1) for _ in range(3))

    process.kill()
    process.wait()

    wait_until(lambda: runs.processes() == set(), "every process of the sandbox to end")
    wait_until(lambda: refused(DSN.parse(printed["ORBIT_RECEIVER_DSN"]).hosts[0]), "the port to close")


def test_a_command_that_does_not_exist_is_said_as_a_shell_says_it(runs: Runs) -> None:
    process = runs.start("no-such-command")

    assert rest(process) == (127, "")
    assert "no-such-command: No such file or directory" in runs.stderr()
    runs.nothing_is_left()


def test_a_folder_that_cannot_be_used_is_said_in_one_line(runs: Runs) -> None:
    (runs.folder / "file").touch()
    runs.environ["ORBIT_SANDBOX_CACHE"] = str(runs.folder / "file" / "cache")
    process = runs.start("echo", "never")

    assert rest(process) == (1, "")
    (said,) = runs.stderr().splitlines()
    assert said.startswith("sandbox: ")
    assert said.endswith("Not a directory: '" + str(runs.folder / "file" / "cache" / "runs") + "'")

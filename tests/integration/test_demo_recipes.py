"""What `make demo` and `make demo-lost-commit` run, as the Makefile says it: what is printed, and what is left."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.sandbox_runs import CHECKOUT, rest

if TYPE_CHECKING:
    from tests.support.sandbox_runs import Runs

LINES = re.compile(
    r"receiver_schema_initialized=true foreign_keys=0\n"
    r"task=(?P<task>[0-9a-f]{32}) state=CANCELLED inbox_duplicate=true applied_events=1\n"
    r"ack_confirmed=1 pending=0 subscription_enabled=false\n"
)


def recipe(target: str) -> str:
    """The target's one command, as make gives it to its shell."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", (CHECKOUT / "Makefile").read_text(), re.MULTILINE)
    assert found is not None, f"the Makefile has no recipe for {target}"
    command = found[1].removeprefix("\t@").replace("\\\n\t", "\\\n").rstrip("\n")
    assert "\n\t" not in command, "more than one command"
    assert "$" not in command, "nothing here expands make's variables"
    return command


@pytest.fixture
def commands(runs: Runs) -> None:
    """The commands of this checkout come first, as those of .venv do under make."""
    folder = runs.folder / "bin"
    folder.mkdir()
    for program in (CHECKOUT / "cmd").iterdir():
        script = folder / program.name
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(program))} "$@"\n')
        script.chmod(0o755)
    runs.environ["PATH"] = os.pathsep.join([str(folder), str(Path(sys.executable).parent), runs.environ["PATH"]])


def logged(stderr: str) -> list[dict[str, Any]]:
    """The lines of stderr that are records of a log."""
    return [json.loads(line) for line in stderr.splitlines() if line.startswith("{")]


def ports_are_closed(stderr: str, *, servers: int) -> None:
    """Assert that nothing listens any more where stderr says that so many servers did."""
    ports = {int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", stderr)}
    assert len(ports) == servers, stderr
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0, port


@pytest.mark.usefixtures("commands")
def test_make_demo_prints_its_three_lines_and_leaves_nothing(runs: Runs) -> None:
    process = runs.launch("sh", "-c", recipe("demo"))

    code, out = rest(process)

    stderr = runs.stderr()
    printed = LINES.fullmatch(out)
    assert code == 0, stderr
    assert printed is not None, out
    (cancelled,) = [line for line in logged(stderr) if line["message"] == "cancelled"]
    assert printed["task"] == cancelled["task_id"]
    (stored,) = [line for line in logged(stderr) if line["message"] == "stored twice"]
    assert (stored["first"], stored["then"]) == ("applied", "duplicate")
    ports_are_closed(stderr, servers=2)
    runs.nothing_is_left()


@pytest.mark.usefixtures("commands")
def test_make_demo_lost_commit_shows_the_swallowed_ok_and_prints_the_same_lines(runs: Runs) -> None:
    process = runs.launch("sh", "-c", recipe("demo-lost-commit"))

    code, out = rest(process)

    stderr = runs.stderr()
    printed = LINES.fullmatch(out)
    assert code == 0, stderr
    assert printed is not None, out
    swallowed = stderr.index("DropCommitOk fired: the OK is swallowed")
    unconfirmed = stderr.index('"outcome": "unconfirmed"')
    duplicate = stderr.index('"first": "duplicate", "then": "duplicate"')
    assert swallowed < unconfirmed < duplicate
    assert "error 1062" in stderr[unconfirmed:duplicate]
    ports_are_closed(stderr, servers=3)
    runs.nothing_is_left()

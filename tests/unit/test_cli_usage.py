"""Commands that are wrong end with 2 before anything is sent; clients' commands need no library of the server's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from orbit.cli.main import main

if TYPE_CHECKING:
    from click.testing import Result

ROOT = Path(__file__).parents[2]
ID = "0" * 32
# Nobody listens there: whatever is sent fails with 1.
SETTINGS = {"ORBIT_URL": "http://127.0.0.1:1", "ORBIT_TOKEN": "t" * 43, "ORBIT_QUEUE_ID": "a" * 32}
RESOLVE = ("task", "resolve", ID, "--outcome", "succeeded")


def orbit(*arguments: str, stdin: str | None = None, **settings: str) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(main, arguments, input=stdin, env=settings or SETTINGS)


@pytest.mark.parametrize(
    "arguments",
    [
        ("nothing",),
        ("task", "show"),
        ("task", "show", "not-an-id"),
        ("task", "list", "--state", "DONE"),
        ("task", "list", "--limit", "0"),
        ("task", "submit", "text.normalize"),
        ("task", "submit", "text.normalize", "--payload", "1", "--payload-file", "-"),
        ("task", "submit", "text.normalize", "--payload", "no json"),
        ("task", "submit", "text.normalize", "--payload", "1", "--max-attempts", "101"),
        RESOLVE,
        (*RESOLVE, "--evidence", "a", "--evidence-file", "-"),
        (*RESOLVE, "--evidence", "a", "--result", "1", "--result-file", "-"),
        (*RESOLVE, "--evidence", "a", "--result", "{"),
        (*RESOLVE, "--evidence", "a", "--result", '{"a":1,"a":2}'),
        (*RESOLVE, "--evidence", "a", "--key", "no blank"),
        ("task", "resolve", ID, "--outcome", "unknown", "--evidence", "a"),
        ("task", "resolve", ID, "--evidence", "a"),
        ("queue", "limits"),
        ("queue", "limits", "--none", "--concurrency-limit", "3"),
        ("queue", "limits", "--start-limit", "3"),
        ("queue", "limits", "--start-window-ms", "1000"),
        ("queue", "limits", "--concurrency-limit", "0"),
        ("queue", "pause", "not-an-id"),
        ("sub", "grant", ID),
        ("sub", "grant", ID, "--attempts", "101"),
        ("sub", "show", "not-an-id"),
    ],
    ids=" ".join,
)
def test_a_wrong_command_ends_with_2_and_prints_nothing(arguments: tuple[str, ...]) -> None:
    result = orbit(*arguments)

    assert (result.exit_code, result.stdout) == (2, "")
    assert "rror: " in result.stderr


def test_a_document_that_is_no_json_is_refused_without_being_quoted() -> None:
    result = orbit(*RESOLVE, "--evidence-file", "-", stdin='{"wholly-secret"')

    assert (result.exit_code, result.stdout) == (2, "")
    assert "--evidence-file: is not strict JSON" in result.stderr
    assert "wholly-secret" not in result.stderr


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"ORBIT_URL": ""}, "ORBIT_URL"),
        ({"ORBIT_URL": "http://orbit.example"}, "ORBIT_URL"),
        ({"ORBIT_TOKEN": ""}, "ORBIT_CREDENTIALS_FILE"),
        ({"ORBIT_QUEUE_ID": "x"}, "ORBIT_QUEUE_ID"),
    ],
)
def test_a_wrong_setting_ends_with_2_and_is_named(settings: dict[str, str], named: str) -> None:
    result = orbit("task", "show", ID, **(SETTINGS | settings))

    assert (result.exit_code, result.stdout) == (2, "")
    assert named in result.stderr
    assert "t" * 43 not in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("task", "show", ID),
        ("task", "history", ID),
        ("task", "list"),
        ("task", "cancel", ID),
        ("queue", "list"),
        ("queue", "show"),
        ("queue", "resume"),
        ("queue", "limits", "--none"),
        ("sub", "list"),
        ("sub", "pause", ID),
        ("sub", "deliveries", ID),
    ],
    ids=" ".join,
)
def test_a_platform_that_is_not_there_ends_with_1(arguments: tuple[str, ...]) -> None:
    result = orbit(*arguments)

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: cannot connect (ConnectError); nothing was sent\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("task", "submit", "text.normalize", "--payload", "1"),
        (*RESOLVE, "--evidence", "a"),
        ("task", "retry", ID),
        ("sub", "grant", ID, "--attempts", "1"),
    ],
    ids=" ".join,
)
def test_an_operations_key_is_told_before_anything_is_sent_unless_it_was_given(arguments: tuple[str, ...]) -> None:
    told = orbit(*arguments)
    given = orbit(*arguments, "--key", "my-key")

    assert told.stderr.splitlines()[0].startswith("operation key ")
    assert given.stderr == "error: cannot connect (ConnectError); nothing was sent\n"


def test_every_command_explains_itself() -> None:
    def walk(command: click.Command, path: tuple[str, ...]) -> None:
        result = orbit(*path, "--help")
        assert (result.exit_code, result.stderr) == (0, ""), path
        assert command.help, path
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found is not None
                walk(found, (*path, name))

    walk(main, ())


BLOCKED = """
import importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"aiomysql", "pymysql", "sqlalchemy", "alembic", "starlette", "uvicorn", "uvloop"}:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)
        return None

sys.meta_path.insert(0, Blocker())
from orbit.cli.main import main
main(prog_name="orbit")
"""


def without_the_server(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCKED, *arguments],
        cwd=ROOT,
        env=SETTINGS,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_clients_commands_work_without_the_servers_libraries() -> None:
    done = without_the_server("task", "show", ID)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: cannot connect (ConnectError); nothing was sent\n"


def test_the_servers_command_says_what_to_install() -> None:
    done = without_the_server("serve")

    assert (done.returncode, done.stdout) == (2, "")
    assert "needs uvloop; install result-inbox[server]" in done.stderr


def test_the_help_of_everything_is_there_without_the_servers_libraries() -> None:
    done = without_the_server("--help")

    assert (done.returncode, done.stderr) == (0, "")
    assert "serve" in done.stdout

"""docs/recovery.md speaks of commands and codes that there are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from orbit.cli.main import main
from orbit.sdk import OrbitClient
from orbit.server.admin import bootstrap
from orbit.server.decide import attempt, cancel

PAGE = (Path(__file__).parents[2] / "docs" / "recovery.md").read_text()
COMMANDS = [
    command for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for command in block.strip().splitlines()
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_on_the_page_is_one_and_takes_these_options(command: str, tmp_path: Path) -> None:
    (tmp_path / "findings.json").write_text("{}")
    program, *arguments = shlex.split(command.replace("findings.json", str(tmp_path / "findings.json")))
    assert program == "orbit"
    found: click.Command = main
    context = click.Context(main)
    while isinstance(found, click.Group):
        name, found_, arguments = found.resolve_command(context, arguments)
        assert found_ is not None, name
        found = found_
    # Parses the rest as the command would, and runs nothing.
    with found.make_context(found.name, arguments) as parsed:
        assert parsed.params


def test_the_page_shows_every_step() -> None:
    assert len(COMMANDS) == 14
    for name in ("list", "history", "resolve", "retry", "cancel"):
        assert any(command.startswith(f"orbit task {name}") for command in COMMANDS)


def test_the_codes_it_explains_are_the_platforms() -> None:
    explained = set(re.findall(r"^\| `([A-Z_]+)` \|", PAGE, re.MULTILINE))
    assert explained == {
        attempt.LEASE_EXPIRED,
        attempt.UNSTARTED,
        attempt.DEADLINE_EXCEEDED,
        cancel.CANCEL_REQUESTED,
    }


def test_the_calls_and_flags_it_names_exist() -> None:
    sentence = PAGE.split("in the SDK:", 1)[1].split(".\n", 1)[0]
    names = [name.removeprefix("OrbitClient.") for name in re.findall(r"`([\w.]+)`", sentence)]
    assert len(names) == 7
    assert all(hasattr(OrbitClient, name) for name in names)
    assert "--task-access" in {flag for option in bootstrap.params for flag in option.opts}

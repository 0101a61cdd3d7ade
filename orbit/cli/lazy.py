"""A group of commands that are imported when they are run: a client's needs none of the server's libraries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click


@dataclass(frozen=True, slots=True)
class Lazy:
    """Where a command is, what `--help` says of it, and which extra of the package has what it imports."""

    where: str
    help: str
    extra: str | None = None


class LazyGroup(click.Group):
    """A group of commands named by `module:attribute`."""

    def __init__(self, *, lazy: Mapping[str, Lazy], **attributes: Any) -> None:
        super().__init__(**attributes)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the table."""
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command. Raises UsageError when the libraries that it needs are not installed."""
        lazy = self._lazy.get(cmd_name)
        if lazy is None:
            return None
        module, _, attribute = lazy.where.partition(":")
        try:
            command: click.Command = getattr(import_module(module), attribute)
        except ModuleNotFoundError as error:
            if lazy.extra is None or (error.name or "").startswith("orbit"):
                raise
            raise click.UsageError(
                f"orbit {cmd_name} needs {error.name}; install result-inbox[{lazy.extra}]", ctx
            ) from None
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in self._lazy.items()])

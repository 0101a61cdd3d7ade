"""Run a command's calls over a client made from the environment, and say what went wrong."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar

import click
import msgspec

from orbit.cli.lines import line, members, shown
from orbit.protocol.values import new_id
from orbit.runtime.logs import configure_logging, get_logger
from orbit.runtime.settings import SettingsError
from orbit.sdk import HTTPError, InvalidConfiguration, InvalidRequest, OrbitClient, OrbitError, TransportError

FAILURE: Final = 1
USAGE: Final = 2

F = TypeVar("F", bound=Callable[..., Any])

_log = get_logger(__name__)

json_option: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON objects, one a line.")
key_option: Final = click.option(
    "--key",
    default=None,
    help="The operation's key; give the one of the first time to settle what became of it. A new one unless given.",
)
limit_option: Final = click.option(
    "--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="How many entries at most."
)
after_option: Final = click.option("--after", default=None, help="Go on after this place, which the list before told.")


@dataclass(frozen=True, slots=True)
class Printer:
    """Prints objects on stdout, each on a line. `documents` names those that are asked for."""

    as_json: bool
    documents: Collection[str] = ()

    def __call__(self, value: msgspec.Struct | msgspec.Raw, *, first: Iterable[str] = ()) -> None:
        """Print one object, the members named in `first` in front."""
        self.members(shown(members(value), first=first, documents=self.documents))

    def members(self, given: dict[str, msgspec.Raw]) -> None:
        """Print members as they are."""
        click.echo(line(given, as_json=self.as_json))


class Failed(Exception):
    """A command could not do what it was asked for; the text says why."""


def run(work: Callable[[OrbitClient], Awaitable[None]], *, key: str | None = None) -> None:
    """Run `work` with a client; ends the process with 1 or 2 when it fails. `key` is the operation's, if it has one."""
    configure_logging("WARNING")

    async def with_client() -> None:
        async with OrbitClient.from_environment(os.environ) as client:
            await work(client)

    _run(with_client(), key)


def operation_key(given: str | None) -> str:
    """The operation's key, told on stderr when it is new: whoever loses the answer needs it."""
    if given is not None:
        return given
    key = new_id()
    say(f"operation key {key}")
    return key


def say(text: str) -> None:
    """Tell people."""
    click.echo(text, err=True)


def fail(message: str, code: int = FAILURE) -> NoReturn:
    """End the command: one line on stderr and the exit code."""
    say(f"error: {message}")
    raise SystemExit(code)


def _run(work: Coroutine[Any, Any, None], key: str | None) -> None:
    try:
        asyncio.run(work)
    except (InvalidConfiguration, InvalidRequest, SettingsError) as error:
        fail(str(error), USAGE)
    except (HTTPError, TransportError) as error:
        fail(_sentence(error, key))
    except (OrbitError, Failed) as error:
        fail(str(error))
    except OSError:
        # click knows what to do about a closed stdout.
        raise
    except Exception as error:  # noqa: BLE001 - the process ends here
        # Classes and positions only: the text of an error that nobody expected may quote anything.
        _log.exception("unexpected error")
        fail(f"unexpected {type(error).__name__}; its position is in the log")


def _sentence(error: HTTPError | TransportError, key: str | None) -> str:
    text = str(error)
    if isinstance(error, HTTPError) and error.message is not None:
        text += f": {''.join(sign if sign.isprintable() else ' ' for sign in error.message)}"
    if error.outcome_unknown and key is not None:
        text += f"; it may have been done: the same command with --key {key} settles that"
    return text

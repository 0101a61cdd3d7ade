"""`receiver`: init, demo and consume. stdout is data; logs and errors go to stderr.

Exit codes: 0 done (consume: drained after a signal); 1 failed; 2 called or configured wrongly, nothing was opened;
130 interrupted.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

import click

from orbit.mysql.errors import DatabaseError, Kind
from orbit.runtime.logs import configure_logging, get_logger
from orbit.runtime.output import OutputFailed, write_lines
from orbit.runtime.shutdown import shutdown_signals
from orbit.sdk import HTTPError, OrbitError, TransportError
from receiver.consume import SubscriptionRefused, consume
from receiver.demo import Demo, DemoFailed, demo
from receiver.install import InstallRefused, init
from receiver.settings import WRONG, exposure, load, load_consume, load_dsn
from receiver.startup import StartupRefused
from receiver.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from typing import Any

    from orbit.mysql.dsn import DSN
    from receiver.settings import ConsumeSettings, Settings

FAILURE: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130

T = TypeVar("T")

_EXPECTED: Final = (DatabaseError, OrbitError, DemoFailed, InstallRefused, StartupRefused, SubscriptionRefused)
"""Failures whose text is ours: it says what is wrong and quotes neither a row nor a secret."""

_HINTS: Final = {
    401: "ORBIT_CREDENTIALS_FILE and ORBIT_TOKEN",
    403: "the credential's permissions and queue",
    404: "ORBIT_SUBSCRIPTION_ID and ORBIT_QUEUE_ID",
}

_log: Final = get_logger(__name__)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="result-inbox")
def main() -> None:
    """Bring Orbit's task results into your own MySQL, each exactly once.

    The database is ORBIT_RECEIVER_DSN (or in the file ORBIT_RECEIVER_DSN_FILE): mysql://user:pass@host:port/database.
    demo and consume also need ORBIT_URL and ORBIT_CREDENTIALS_FILE, consume ORBIT_SUBSCRIPTION_ID. RECEIVER_NAME is the
    fixed purpose of this inbox: the same for every instance and after every restart.
    """


_log_level = click.option(
    "--log-level",
    default="INFO",
    show_default=True,
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
    help="What goes to stderr.",
)


@main.command("init")
@_log_level
def init_command(log_level: str) -> None:
    """Make the two tables in an empty database of the receiver's own; the account needs CREATE."""
    configure_logging(log_level.upper())
    dsn = _settings(load_dsn)
    _warn_of_exposure(dsn)
    foreign_keys = _run(init(dsn))
    _print(f"receiver_schema_initialized=true foreign_keys={foreign_keys}")


@main.command("demo")
@_log_level
def demo_command(log_level: str) -> None:
    """Cancel a task and show its way into the tables; needs a queue that nobody else uses."""
    configure_logging(log_level.upper())
    run_demo(_settings(load))


@main.command("consume")
@_log_level
def consume_command(log_level: str) -> None:
    """Consume a subscription until SIGTERM or SIGINT, which drain within 10 s."""
    configure_logging(log_level.upper())
    run_consume(_settings(load_consume))


def run_demo(settings: Settings, kind: type[Demo] = Demo) -> None:
    """Run the demo and print its two lines, once everything in them is proved."""

    _warn_of_exposure(settings.dsn)

    async def work() -> tuple[str, str] | None:
        with shutdown_signals() as shutdown:
            report = await demo(settings, shutdown.drain, kind=kind)
        return None if report is None else report.lines()

    lines = _run(work())
    if lines is None:
        _fail("interrupted; everything is left as it is", INTERRUPTED)
    _print(*lines)


def run_consume(settings: ConsumeSettings, store_type: type[Store] = Store) -> None:
    """Consume until a signal; a second one ends with 1."""

    _warn_of_exposure(settings.dsn)

    async def work() -> bool:
        with shutdown_signals() as shutdown:
            await consume(settings, shutdown, store_type=store_type)
            return shutdown.hard.is_set()

    if _run(work()):
        _fail("ended by a second signal before the drain was over", FAILURE)


def _settings(read: Callable[[Mapping[str, str]], T]) -> T:
    try:
        return read(os.environ)
    except WRONG as error:
        _fail(str(error), USAGE)


def _warn_of_exposure(dsn: DSN) -> None:
    reason = exposure(dsn)
    if reason is not None:
        _log.warning("database connection exposed", reason=reason)


def _run(work: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(work)
    except _EXPECTED as error:
        _fail(_sentence(error), FAILURE)
    except KeyboardInterrupt:
        _fail("interrupted", INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - the process ends here
        # Classes and positions only: the text of an error that nobody expected may quote anything.
        _log.exception("unexpected error")
        _fail(f"unexpected {type(error).__name__}; its position is in the log", FAILURE)


def _sentence(error: Exception) -> str:
    """Say which side failed, and which setting to look at where the failure tells."""
    if isinstance(error, DatabaseError):
        hint = "; check account, privileges, TLS and the server's settings" if error.kind is Kind.CONFIGURATION else ""
        return f"{error}, from the database of ORBIT_RECEIVER_DSN{hint}"
    if isinstance(error, HTTPError):
        look_at = _HINTS.get(error.status)
        return f"{error}, from Orbit at ORBIT_URL" + ("" if look_at is None else f"; check {look_at}")
    return f"{error} (Orbit at ORBIT_URL)" if isinstance(error, TransportError) else str(error)


def _print(*lines: str) -> None:
    try:
        write_lines(*lines)
    except OutputFailed as error:
        _fail(str(error), FAILURE)


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"error: {message}", err=True)
    raise SystemExit(code)


if __name__ == "__main__":
    main()

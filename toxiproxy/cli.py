"""`python -m toxiproxy run`: run a command whose MySQL goes through the fault proxy, and say what happened."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Final

import click

from toxiproxy.dsn import InvalidDSN, read_dsn
from toxiproxy.faults import CutBeforeCommit, DropCommitOk, End, Fault, UnfiredFault, UnrecognisedTraffic
from toxiproxy.journal import Entry, Point
from toxiproxy.mysql_proxy import MySQLProxy

if TYPE_CHECKING:
    from toxiproxy.dsn import Target

_PASSED_ON: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_SHOWN: Final = {
    Point.COMMIT: "COMMIT arrives, with a transaction open",
    Point.COMMIT_OK: "MySQL has committed and answers with OK",
    Point.ERROR: "MySQL answers {command} with error {errno}",
    Point.UNRECOGNISED: "unrecognised: {command}",
    Point.REFUSED: "the client asked for {command} and was refused",
    Point.UPSTREAM_REFUSED: "MySQL cannot be reached",
}
_FIRED: Final = {
    "DropCommitOk": "the OK is swallowed, the client will never read it",
    "CutBeforeCommit": "it is swallowed, MySQL will never see it",
}


@click.group()
def main() -> None:
    """A fault proxy for tests and demonstrations; it reads everything in plain text."""


@main.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.option("--dsn-env", required=True, metavar="NAME", help="The environment variable that holds the DSN.")
@click.option("--fault", required=True, type=click.Choice(["drop-commit-ok", "cut-before-commit"]))
@click.option("--nth", default=1, show_default=True, type=click.IntRange(min=1), help="At which COMMIT.")
@click.option("--end", default="fin", show_default=True, type=click.Choice([end.value for end in End]))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(dsn_env: str, fault: str, nth: int, end: str, command: tuple[str, ...]) -> None:
    """Run COMMAND with the DSN pointing at a fault proxy in front of its host.

    The exit code is COMMAND's, or 1 when the fault never fired.
    """
    text = os.environ.get(dsn_env)
    if not text:
        raise click.UsageError(f"{dsn_env} is not set")
    try:
        target = read_dsn(text)
    except InvalidDSN as error:
        raise click.UsageError(f"{dsn_env} cannot be used: {error}") from error
    ending = End(end)
    armed = DropCommitOk(ending, nth=nth) if fault == "drop-commit-ok" else CutBeforeCommit(ending, nth=nth)
    sys.exit(asyncio.run(_run(target, dsn_env, armed, command)))


async def _run(target: Target, variable: str, fault: Fault, command: tuple[str, ...]) -> int:
    code = 1
    try:
        async with MySQLProxy(target.host, target.port, on_entry=_show) as proxy:
            proxy.arm(fault)
            _say(
                f"127.0.0.1:{proxy.port} stands before {target.host}:{target.port} as {variable}, in plain text only;"
                f" {fault.name} is armed for COMMIT number {fault.nth}"
            )
            environment = os.environ | {variable: target.through("127.0.0.1", proxy.port)}
            code = await _child(command, environment)
    except UnfiredFault:
        _say(
            f"{fault.name} was armed and never fired, for fewer than {fault.nth} matching COMMITs passed:"
            " this run proves nothing"
        )
        return 1
    except UnrecognisedTraffic as error:
        _say(f"something passed that the proxy cannot judge, so this run proves nothing: {error}")
        return 1
    return code


async def _child(command: tuple[str, ...], environment: dict[str, str]) -> int:
    """Run the command in a process group of its own, pass signals on to the group, return its exit code."""
    signals = _Signals()
    loop = asyncio.get_running_loop()
    for number in _PASSED_ON:
        loop.add_signal_handler(number, signals.take, number)
    try:
        process = await asyncio.create_subprocess_exec(*command, env=environment, process_group=0)
        signals.send_to(process.pid)
        code = await process.wait()
    except OSError as error:
        _say(f"{command[0]} cannot be run: {error.strerror}")
        return 127 if isinstance(error, FileNotFoundError) else 126
    finally:
        for number in _PASSED_ON:
            loop.remove_signal_handler(number)
    return code if code >= 0 else 128 - code


class _Signals:
    """Pass signals on to a process group, also those that came before it was there."""

    def __init__(self) -> None:
        self._group: int | None = None
        self._early: list[int] = []

    def take(self, number: int) -> None:
        if self._group is None:
            self._early.append(number)
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._group, number)

    def send_to(self, group: int) -> None:
        self._group = group
        for number in self._early:
            self.take(number)


def _show(entry: Entry) -> None:
    if entry.point not in _SHOWN:
        return
    words = _SHOWN[entry.point].format(command=entry.command, errno=entry.errno)
    fired = f"; {entry.fired} fired: {_FIRED[entry.fired]}" if entry.fired is not None else ""
    thread = f" (thread {entry.thread_id})" if entry.thread_id is not None else ""
    _say(f"connection {entry.connection}{thread}: {words}{fired}")


def _say(text: str) -> None:
    click.echo(f"toxiproxy: {text}", err=True)

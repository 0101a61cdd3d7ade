"""`orbit dev`: an Orbit of one's own with a queue, credentials and a sample worker, for as long as it stays up."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import click

from orbit.sandbox.errors import SandboxError
from orbit.sandbox.node import HOME
from orbit.sandbox.process import end, spawn
from orbit.sandbox.stack import Sandbox, open_sandbox
from orbit.sandbox.supervise import Interrupted, Signals, stay

if TYPE_CHECKING:
    import subprocess

_WORKER: Final = (sys.executable, "-m", "orbit.sandbox.sample_worker")
_OVERRIDES: Final = ("ORBIT_TOKEN", "ORBIT_TOKEN_FILE", "ORBIT_QUEUE_ID")
"""Variables that would take the place of what is in the credentials file."""
_TRY: Final = """
Orbit is up. In another terminal, with the two variables above exported:

  orbit task submit text.normalize --payload '{"text": "  hello  "}'
  orbit task submit demo.flaky --payload '{}' --max-attempts 2
  orbit task submit demo.sleep --payload '{"seconds": 60}'     # then: orbit task cancel TASK_ID
  orbit task submit demo.crash --payload '{}'                  # then: orbit task list, history, resolve
  orbit task show TASK_ID --show-result

Ctrl-C ends it, and everything in it is gone."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--worker/--no-worker", default=True, show_default=True, help="Whether the sample worker runs.")
def dev(*, worker: bool) -> None:
    """Start an Orbit of your own with a queue, credentials and a sample worker, until Ctrl-C or SIGTERM.

    Prints ORBIT_URL, ORBIT_CREDENTIALS_FILE and ORBIT_RECEIVER_DSN as NAME=value lines when it is up. MySQL is the one
    of ORBIT_SANDBOX_MYSQL_DSN, or one that is started for it. Everything is gone afterwards.
    """
    signals = Signals()
    signals.install()
    status = 0
    try:
        with open_sandbox(os.environ, on_progress=_say) as sandbox, ExitStack() as stack:
            process = _start_worker(sandbox, stack) if worker else None
            signals.running()
            for name, value in sandbox.exports().items():
                click.echo(f"{name}={value}")
            sys.stdout.flush()
            click.echo(_TRY, err=True)
            failure = stay(signals, lambda: sandbox.node.failure() or _ended(process))
            if failure is not None:
                _say(failure)
                status = 1
            signals.ending()
    except SandboxError as error:
        _say(str(error))
        status = 1
    except Interrupted as interruption:
        status = 128 + interruption.number
    raise SystemExit(status)


def _start_worker(sandbox: Sandbox, stack: ExitStack) -> subprocess.Popen[bytes]:
    """Start the sample worker; it drains before the platform ends. What it prints is for people here."""
    variables = {name: sandbox.exports()[name] for name in ("ORBIT_URL", "ORBIT_CREDENTIALS_FILE")}
    environ = {name: value for name, value in os.environ.items() if name not in _OVERRIDES} | variables
    process = spawn(_WORKER, environ=environ, folder=HOME, stdout=sys.stderr.fileno())
    stack.callback(end, process)
    return process


def _ended(process: subprocess.Popen[bytes] | None) -> str | None:
    status = None if process is None else process.poll()
    return None if status is None else f"the sample worker ended with {status}"


def _say(text: str) -> None:
    click.echo(f"dev: {text}", err=True)

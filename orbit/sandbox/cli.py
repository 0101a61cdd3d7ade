"""`orbit-sandbox run [-- COMMAND]`: a MySQL and an Orbit for one command, or for as long as it stays up."""

from __future__ import annotations

import sys

import click

from orbit.sandbox.errors import SandboxError
from orbit.sandbox.stack import Sandbox, open_sandbox
from orbit.sandbox.supervise import Interrupted, Signals, run_command, stay


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Start a real MySQL and a real Orbit of your own."""


@main.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(command: tuple[str, ...]) -> None:
    """Run COMMAND with ORBIT_URL, ORBIT_CREDENTIALS_FILE and ORBIT_RECEIVER_DSN of a fresh sandbox.

    The exit code is COMMAND's. Without COMMAND the sandbox prints the three as NAME=value lines on stdout and stays
    up until Ctrl-C or SIGTERM. Everything is gone afterwards: processes, databases, files. Progress is on stderr.
    """
    signals = Signals()
    signals.install()
    try:
        with open_sandbox(on_progress=_say, log_to_stderr=not command) as sandbox:
            signals.running()
            status = _run(command, sandbox, signals)
            signals.ending()
    except (SandboxError, OSError) as error:
        # An OSError names the file: a cache folder that cannot be made, a full disk.
        _say(str(error))
        status = 1
    except Interrupted as interruption:
        status = 128 + interruption.number
    sys.exit(status)


def _run(command: tuple[str, ...], sandbox: Sandbox, signals: Signals) -> int:
    if command:
        status = run_command(command, sandbox, signals, on_progress=_say)
        failure = sandbox.node.failure()
        if failure is not None:
            _say(failure)
        elif status != 0:
            _say(f"the command ended with {status}; the end of the platform's log:\n{sandbox.node.log}")
        return status
    for name, value in sandbox.exports().items():
        click.echo(f"{name}={value}")
    sys.stdout.flush()
    failure = stay(signals, sandbox.node.failure)
    if failure is not None:
        _say(failure)
    return 0 if failure is None else 1


def _say(text: str) -> None:
    click.echo(f"sandbox: {text}", err=True)

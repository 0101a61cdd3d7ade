"""Run a command inside a sandbox, pass signals on to it, and leave nothing of it behind.

The command shares the terminal's foreground process group, so a shell or a client in it can read from the terminal;
what the sandbox itself runs has sessions of its own and is ended afterwards.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from enum import Enum
from typing import TYPE_CHECKING, Final

from orbit.sandbox.descendants import adopt_orphans, end_strays
from orbit.sandbox.process import spawn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from orbit.sandbox.stack import Sandbox

GRACE_S: Final = 15.0
"""How long a command may take to end after a signal; the receiver's own drain takes up to 10 s."""
STRAY_GRACE_S: Final = 5.0
"""How long processes may take to end that a command left running."""
_POLL_S: Final = 0.1
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal came while the sandbox was starting. No Exception, so that no error handler takes it for one."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Stage(Enum):
    STARTING = "starting"  # a signal ends the start
    RUNNING = "running"  # a signal is for the command
    ENDING = "ending"  # everything is being ended already


class Signals:
    """What the three signals that ask for an end mean, by stage."""

    def __init__(self) -> None:
        self._stage = _Stage.STARTING
        self.received: list[signal.Signals] = []

    def install(self) -> None:
        """Take over SIGINT, SIGTERM and SIGHUP for the rest of this process."""
        for number in _SIGNALS:
            signal.signal(number, self._handle)

    def running(self) -> None:
        """From here a signal is recorded and no longer raised."""
        self._stage = _Stage.RUNNING
        self.received.clear()

    def ending(self) -> None:
        """From here signals change nothing: the clean-up is bounded and must not be cut."""
        self._stage = _Stage.ENDING

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        match self._stage:
            case _Stage.STARTING:
                self.ending()
                raise Interrupted(number)
            case _Stage.RUNNING:
                self.received.append(signal.Signals(number))
            case _Stage.ENDING:
                pass


def run_command(
    command: Sequence[str], sandbox: Sandbox, signals: Signals, *, on_progress: Callable[[str], None]
) -> int:
    """Run the command with the sandbox's variables; return its exit status as a shell would (128 + signal)."""
    adopt_orphans()
    process = spawn(
        command,
        environ={**os.environ, **sandbox.exports()},
        stdin=None,
        own_session=False,
        death_signal=signal.SIGTERM,
    )
    try:
        status = _wait(process, signals, on_progress)
    finally:
        signals.ending()
        if process.poll() is None:
            process.kill()
            process.wait()
        # After a signal what is left may still be draining, as when the shell round a receiver ended first.
        end_strays(keep=sandbox.pids(), grace_s=GRACE_S if signals.received else STRAY_GRACE_S)
    return status if status >= 0 else 128 - status


def _wait(process: subprocess.Popen[bytes], signals: Signals, on_progress: Callable[[str], None]) -> int:
    """Wait for the command. A signal is passed on and starts the grace period; a second one ends it."""
    deadline = None
    while True:
        try:
            return process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            pass
        if not signals.received:
            continue
        if deadline is None:
            first = signals.received[0]
            deadline = time.monotonic() + GRACE_S
            if not _from_terminal(first):
                process.send_signal(first)
            on_progress(f"{first.name}: the command has {GRACE_S:.0f} s to end")
        elif len(signals.received) > 1:
            on_progress("a second signal: killing the command")
            process.kill()
            return process.wait()
        elif time.monotonic() > deadline:
            on_progress(f"the command did not end in {GRACE_S:.0f} s: killing it")
            process.kill()
            return process.wait()


def _from_terminal(number: signal.Signals) -> bool:
    """Whether the terminal sent it, and so to the command as well: SIGINT to the foreground process group."""
    if number is not signal.SIGINT:
        return False
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def stay(signals: Signals, failed: Callable[[], str | None]) -> str | None:
    """Stay up until a signal comes, or until something ended by itself, which `failed` says; return that."""
    while not signals.received:
        failure = failed()
        if failure is not None:
            return failure
        time.sleep(_POLL_S)
    return None

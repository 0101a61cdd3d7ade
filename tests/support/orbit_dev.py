"""`orbit dev` as somebody uses it: the process, and commands beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.processes import wait_until
from tests.support.sandbox_runs import line

if TYPE_CHECKING:
    from tests.support.sandbox_runs import Runs

CHECKOUT = Path(__file__).parents[2]
ORBIT = (sys.executable, str(CHECKOUT / "cmd" / "orbit"))


class Dev:
    """One run of `orbit dev` and the commands of somebody who uses it."""

    def __init__(self, runs: Runs, *options: str) -> None:
        self.process = runs.launch(*ORBIT, "dev", *options)
        printed = dict(line(self.process).split("=", 1) for _ in range(3))
        assert set(printed) == {"ORBIT_URL", "ORBIT_CREDENTIALS_FILE", "ORBIT_RECEIVER_DSN"}
        del printed["ORBIT_RECEIVER_DSN"]
        self.environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT), **printed}

    def orbit(self, *arguments: str) -> list[dict[str, Any]]:
        """Run a command; the objects that it printed."""
        return [json.loads(one) for one in self.text(*arguments, "--json").splitlines()]

    def text(self, *arguments: str) -> str:
        """Run a command; what it printed for a person."""
        done = subprocess.run(
            [*ORBIT, *arguments], env=self.environ, capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self, handler: str, payload: str, *options: str) -> str:
        """Submit a task; its id."""
        [task] = self.orbit("task", "submit", handler, "--payload", payload, *options)
        return str(task["task_id"])

    def ends(self, task_id: str, state: str) -> dict[str, Any]:
        """Wait until the task is in a state; the task."""
        found: list[dict[str, Any]] = []

        def is_there() -> bool:
            found[:] = self.orbit("task", "show", task_id, "--show-result")
            return bool(found[0]["state"] == state)

        wait_until(is_there, f"the task to be {state}")
        return found[0]

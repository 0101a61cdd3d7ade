"""`orbit dev`: one command gives a platform, credentials and a worker, and everything is gone afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.processes import wait_until
from tests.support.sandbox_runs import line, rest

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
        self._environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT), **printed}

    def orbit(self, *arguments: str) -> list[dict[str, Any]]:
        """Run a command; the objects that it printed."""
        done = subprocess.run(
            [*ORBIT, *arguments, "--json"], env=self._environ, capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(one) for one in done.stdout.splitlines()]

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


def test_one_command_shows_a_success_a_retry_a_cancellation_and_a_review(runs: Runs) -> None:
    dev = Dev(runs)
    normal = dev.submit("text.normalize", '{"text": "  hello  "}')
    flaky = dev.submit("demo.flaky", "{}", "--max-attempts", "2")
    crashed = dev.submit("demo.crash", "{}")
    long = dev.submit("demo.sleep", '{"seconds": 600}')

    assert dev.ends(normal, "SUCCEEDED")["result"] == {"text": "HELLO"}
    assert dev.ends(flaky, "SUCCEEDED")["attempt_count"] == 2
    dev.ends(long, "RUNNING")
    dev.orbit("task", "cancel", long)
    dev.ends(long, "CANCELLED")
    dev.ends(crashed, "NEEDS_REVIEW")
    assert [task["task_id"] for task in dev.orbit("task", "list")] == [crashed]
    dev.orbit("task", "resolve", crashed, "--outcome", "cancelled", "--evidence", "looked")
    assert dev.orbit("task", "list") == []
    assert dev.orbit("queue", "pause")[0]["paused"] is True

    dev.process.send_signal(signal.SIGINT)

    assert rest(dev.process) == (0, "")
    assert "worker_drained=true started=5 confirmed=5 running=0" in runs.stderr()
    runs.nothing_is_left()


def test_without_a_worker_tasks_wait(runs: Runs) -> None:
    dev = Dev(runs, "--no-worker")
    task_id = dev.submit("text.normalize", '{"text": "  hello  "}')

    assert dev.orbit("task", "show", task_id)[0]["state"] == "WAITING"
    dev.process.send_signal(signal.SIGTERM)

    assert rest(dev.process) == (0, "")
    assert "worker_drained" not in runs.stderr()
    runs.nothing_is_left()


def test_the_end_of_the_worker_is_an_error_that_says_so(runs: Runs) -> None:
    dev = Dev(runs)
    (worker,) = (pid for pid in runs.processes() if b"sample_worker" in Path(f"/proc/{pid}/cmdline").read_bytes())

    os.kill(worker, signal.SIGKILL)

    assert rest(dev.process) == (1, "")
    assert "dev: the sample worker ended with -9" in runs.stderr()
    runs.nothing_is_left()

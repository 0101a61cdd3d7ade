"""`orbit dev`: one command gives a platform, credentials and a worker, and everything is gone afterwards."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.orbit_dev import Dev
from tests.support.sandbox_runs import rest

if TYPE_CHECKING:
    from tests.support.sandbox_runs import Runs


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

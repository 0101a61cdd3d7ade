"""docs/first-worker.md, followed to the letter: its worker is run, and each of its commands, in their order."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.orbit_dev import Dev
from tests.support.processes import wait_until
from tests.support.sandbox_runs import rest

if TYPE_CHECKING:
    from tests.support.sandbox_runs import Runs

PAGE = (Path(__file__).parents[2] / "docs" / "first-worker.md").read_text()
CLOSING_LINE = r"worker_drained=true started=5 confirmed=5 running=0"


def section(number: int) -> str:
    """The page's section of that number."""
    found = re.search(rf"^## {number}\. .*?(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[0]


class Reader:
    """Somebody who types what a section says; `TASK_ID` is the task that was last submitted."""

    def __init__(self, dev: Dev) -> None:
        self.dev = dev
        self.task_id = ""

    def follow(self, number: int, *, until: str) -> list[str]:
        """Run the section's commands; before the second one, wait until the task is in the state `until`."""
        [script] = re.findall(r"```sh\n(.*?)```", section(number), re.DOTALL)
        printed = []
        for position, command in enumerate(script.splitlines()):
            program, *arguments = shlex.split(command.replace("TASK_ID", self.task_id))
            assert program == "orbit"
            if position == 1:
                self.dev.ends(self.task_id, until)
            printed.append(self.dev.text(*arguments))
            if arguments[:2] == ["task", "submit"]:
                found = re.search(r"\btask_id=([0-9a-f]{32})\b", printed[-1])
                assert found is not None
                self.task_id = found[1]
        return printed


def test_every_step_shows_what_the_page_says(runs: Runs, tmp_path: Path) -> None:
    [program] = re.findall(r"```python\n(.*?)```", section(2), re.DOTALL)
    (tmp_path / "greeter.py").write_text(program)
    dev = Dev(runs, "--no-worker")
    worker = subprocess.Popen(
        [sys.executable, str(tmp_path / "greeter.py")], env=dev.environ, stdout=subprocess.PIPE, text=True
    )
    try:
        reader = Reader(dev)

        *_, shown = reader.follow(3, until="SUCCEEDED")
        assert "state=SUCCEEDED" in shown
        assert 'result={"text":"Hello Ada"}' in shown

        *_, history = reader.follow(4, until="SUCCEEDED")
        first, second = [line for line in history.splitlines() if line.startswith("record=attempt")]
        assert "outcome=FAILED" in first
        assert "retryable=true" in first
        assert "decision=RETRYABLE_FAILURE" in first
        assert "outcome=SUCCEEDED" in second

        reader.follow(5, until="RUNNING")
        assert dev.ends(reader.task_id, "CANCELLED")["error_code"] == "CANCELLED"

        _, listed = reader.follow(6, until="NEEDS_REVIEW")
        assert f"task_id={reader.task_id} state=NEEDS_REVIEW" in listed
        assert "error_code=HANDLER_RAISED effect_uncertain=true" in listed

        *_, resolved = reader.follow(7, until="NEEDS_REVIEW")
        assert "state=FAILED" in resolved
        assert "effect_uncertain" not in resolved

        assert CLOSING_LINE in section(8)
        # The fifth attempt is the one that the retry took.
        worker.send_signal(signal.SIGINT)
        assert worker.communicate(timeout=30)[0] == f"{CLOSING_LINE}\n"
        assert worker.returncode == 0
    finally:
        if worker.poll() is None:
            worker.kill()
            worker.communicate()
    dev.process.send_signal(signal.SIGINT)
    assert rest(dev.process)[0] == 0
    wait_until(lambda: dev.process.poll() is not None, "orbit dev to end")
    runs.nothing_is_left()

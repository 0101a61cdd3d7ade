"""What a worker's own tests need: a handler's run without a platform, a clock, a platform in memory.

    report = await run_handler(normalize, {"text": " a "})
    assert (report.outcome, report.result) == (Outcome.SUCCEEDED, {"text": "A"})

A real platform for tests is a pytest fixture of `orbit.sandbox.pytest_plugin`.
"""

from __future__ import annotations

from orbit.sdk.testing.clock import FakeClock
from orbit.sdk.testing.kit import HandlerReport, Running, run_handler
from orbit.sdk.testing.peer import Cut, Drop, Hold, Ignore, Misdeed, Refuse, Say, Seen
from orbit.sdk.testing.platform import FakePlatform
from orbit.sdk.testing.tasks import FakeAttempt, FakeTask

__all__ = [
    "Cut",
    "Drop",
    "FakeAttempt",
    "FakeClock",
    "FakePlatform",
    "FakeTask",
    "HandlerReport",
    "Hold",
    "Ignore",
    "Misdeed",
    "Refuse",
    "Running",
    "Say",
    "Seen",
    "run_handler",
]

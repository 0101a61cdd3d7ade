"""What became of the attempts that a runner was given, as exact counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerCounts:
    """What became of every attempt assigned so far, and where the held ones are now.

    Each attempt that was assigned counts in exactly one of waiting, dropped and started; each that was started in
    exactly one of calling, reporting, confirmed, refused and abandoned.
    """

    assigned: int = 0
    waiting: int = 0
    """Not started yet."""
    dropped: int = 0
    """Never started: the handler was not called, and the lease runs out or was taken away."""
    started: int = 0
    """The platform confirmed the start."""
    calling: int = 0
    """The handler runs and its attempt is its own."""
    reporting: int = 0
    """The outcome is known and not confirmed yet."""
    confirmed: int = 0
    """The platform answered the report."""
    refused: int = 0
    """The platform refused the report for good; a defect."""
    abandoned: int = 0
    """The runner ended before the platform answered; the platform finds out by the lease."""
    evidence_only: int = 0
    """Of those confirmed: kept as evidence, as the lease was lost before."""
    running: int = 0
    """Handlers that run, those included that go on after their attempt was reported."""
    reconnects: int = 0


class Tally:
    """The counts as they grow. `changed` is called after each change."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.changed = changed
        self.counts = RunnerCounts()

    def count(self, **more: int) -> None:
        """Add to counts by name."""
        grown = {name: getattr(self.counts, name) + number for name, number in more.items()}
        self.counts = replace(self.counts, **grown)
        self.changed()

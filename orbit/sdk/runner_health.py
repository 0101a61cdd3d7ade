"""Whether a runner does its work, from plain facts with their times: nothing has to run for it to turn false."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from orbit.protocol.limits import Limits

HEARTBEATS_MISSED: Final = 2
"""Heartbeats without an answer after which a runner is not healthy."""


@dataclass(frozen=True, slots=True)
class Health:
    """A runner's health at one moment; `reasons` says in full sentences why it is not healthy."""

    healthy: bool
    reasons: tuple[str, ...] = ()


class Vitals:
    """The facts that health is judged by. The loop writes them; any thread may judge."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._waiting_since: float | None = None
        self._acknowledged_at: float | None = None
        self._deaf: str | None = None
        self._ended: str | None = "it has not been started"

    def begun(self) -> None:
        """The runner was started."""
        self._ended = None
        self._waiting_since = self._clock()

    def welcomed(self) -> None:
        """A session was welcomed; its first heartbeat is still to come."""
        self._waiting_since = None
        self._acknowledged_at = self._clock()

    def acknowledged(self) -> None:
        """The platform answered a heartbeat, and this session's listeners run."""
        self._acknowledged_at = self._clock()
        self._deaf = None

    def deafened(self, part: str) -> None:
        """A part of the session has ended alone: its listener, or its heartbeat."""
        self._deaf = part

    def lost(self) -> None:
        """The session is over."""
        self._acknowledged_at = None
        self._waiting_since = self._clock()

    def ended(self, why: str) -> None:
        """The runner has ended."""
        self._ended = why

    def judge(self) -> Health:
        """Judge the facts as they are now."""
        if self._ended is not None:
            return Health(healthy=False, reasons=(self._ended,))
        now = self._clock()
        reasons = []
        if self._deaf is not None:
            reasons.append(f"the session's part for {self._deaf} has ended alone")
        waiting_since, acknowledged_at = self._waiting_since, self._acknowledged_at
        if waiting_since is not None and now - waiting_since > self._limits.handshake_s:
            reasons.append(f"no welcome for {now - waiting_since:.0f} s")
        if acknowledged_at is not None and now - acknowledged_at > HEARTBEATS_MISSED * self._limits.heartbeat_s:
            reasons.append(f"no answer to a heartbeat for {now - acknowledged_at:.0f} s")
        return Health(healthy=not reasons, reasons=tuple(reasons))

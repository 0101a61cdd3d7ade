"""When a handler may run, and until when: only what an answer to this process's own request says."""

from __future__ import annotations

import copy
import dataclasses
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from orbit.protocol.attempt_v1 import AttemptState, Lease
from orbit.sdk.worker_lease import WorkerLease, confirmed

DATABASE = datetime(2031, 5, 1, 12, 0, 0, 250_000, tzinfo=UTC)
MARGIN_S = 0.25


def lease(**changes: Any) -> Lease:
    values: dict[str, Any] = {
        "task_id": "1" * 32,
        "attempt_id": "2" * 32,
        "epoch": 1,
        "state": AttemptState.RUNNING,
        "active": True,
        "server_time": DATABASE,
        "lease_until": DATABASE + timedelta(seconds=30),
    }
    return Lease(**values | changes)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The monotonic clock, set by the test."""

    class Clock:
        value = 1_000.0

        def __call__(self) -> float:
            return self.value

    clock = Clock()
    monkeypatch.setattr("orbit.sdk.worker_lease.time.monotonic", clock)
    return clock


def test_the_deadline_is_the_leases_length_from_the_calls_beginning_less_the_margin(now: Any) -> None:
    # The call began at 1,000 and took 2 s: they are lost, and so is the margin. 1,000 + 30 - 0.25.
    now.value = 1_002.0
    assert confirmed(lease(), 1_000.0, MARGIN_S).execution_deadline() == 1_029.75


@pytest.mark.parametrize(
    ("at", "deadline"), [(1_029.749, 1_029.75), (1_029.75, None), (1_029.751, None), (5_000.0, None)]
)
def test_a_deadline_that_has_passed_is_none(now: Any, at: float, deadline: float | None) -> None:
    given = confirmed(lease(), 1_000.0, MARGIN_S)
    now.value = at
    assert given.execution_deadline() == deadline


@pytest.mark.parametrize(
    "changes",
    [
        {"active": False},
        {"state": AttemptState.LEASED},
        {"state": AttemptState.ENDED, "active": False},
        {"state": AttemptState.ENDED, "active": False, "lease_until": None},
        {"cancel_requested_at": DATABASE - timedelta(seconds=1)},
        {"lease_until": DATABASE},
        {"lease_until": DATABASE + timedelta(milliseconds=250)},
        {"lease_until": DATABASE - timedelta(days=1)},
    ],
)
def test_what_gives_no_right_to_run_has_no_deadline(now: Any, changes: dict[str, Any]) -> None:
    assert confirmed(lease(**changes), 1_000.0, MARGIN_S).execution_deadline() is None


@pytest.mark.parametrize("off", [timedelta(days=-1), timedelta(), timedelta(days=1), timedelta(days=3_650)])
def test_only_the_difference_of_the_databases_times_counts(now: Any, off: timedelta) -> None:
    given = lease(server_time=DATABASE + off, lease_until=DATABASE + off + timedelta(seconds=30))
    assert confirmed(given, 1_000.0, MARGIN_S).execution_deadline() == 1_029.75


def test_a_lease_that_was_constructed_parsed_or_changed_has_none() -> None:
    members = {name: getattr(lease(), name) for name in Lease.__dataclass_fields__}
    assert WorkerLease(**members).execution_deadline() is None
    given = confirmed(lease(), time.monotonic(), MARGIN_S)
    assert given.execution_deadline() is not None
    assert WorkerLease.parse(given.to_body()).execution_deadline() is None
    assert WorkerLease.parse(given.to_body(), lenient=True).execution_deadline() is None
    assert dataclasses.replace(given, lease_until=DATABASE + timedelta(days=1)).execution_deadline() is None
    # The other way round: nothing of the deadline is on the wire, or is a lease's value.
    assert given.to_body() == lease().to_body()
    assert copy.copy(given).execution_deadline() == given.execution_deadline()


@pytest.mark.parametrize("name", ["_until", "until", "deadline", "execution_deadline"])
def test_neither_constructor_nor_json_takes_a_deadline(name: str) -> None:
    more: dict[str, Any] = {name: time.monotonic() + 100}
    members = {each: getattr(lease(), each) for each in Lease.__dataclass_fields__}
    with pytest.raises(TypeError):
        WorkerLease(**members | more)
    parsed = WorkerLease.parse(lease().to_body() | more, lenient=True)
    assert parsed.execution_deadline() is None
    with pytest.raises((TypeError, ValueError)):
        dataclasses.replace(confirmed(lease(), 0.0, MARGIN_S), **more)


def test_it_cannot_be_assigned() -> None:
    given = confirmed(lease(), time.monotonic(), MARGIN_S)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(given, "_until", 1.0)  # noqa: B010 - mypy knows that it cannot be

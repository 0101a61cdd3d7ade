"""Who may act and until when; who goes first; how much room a queue leaves."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from orbit.protocol.attempt_v1 import AttemptState
from orbit.protocol.errors import ApiError, ErrorCode
from orbit.server.decide import authority, dispatch
from orbit.server.decide.authority import Grant, Standing

NOW = datetime(2026, 1, 31, 8, 15, 30)  # noqa: DTZ001 - as the database gives times
S = timedelta(seconds=1)
TICK = timedelta(microseconds=1)
LEASED, RUNNING, ENDED = AttemptState.LEASED, AttemptState.RUNNING, AttemptState.ENDED


def standing(**given: Any) -> Standing:
    """A leased attempt with ten seconds of lease and an hour of task."""
    values: dict[str, Any] = {
        "now": NOW,
        "state": LEASED,
        "newest": True,
        "lease_until": NOW + 10 * S,
        "timeout_at": None,
        "deadline_at": NOW + 3600 * S,
        "latest_start_at": None,
        "cancel_requested": False,
    }
    return Standing(**(values | given))


@pytest.mark.parametrize(
    ("given", "active", "may_report"),
    [
        ({}, True, False),
        ({"state": RUNNING}, True, True),
        ({"state": ENDED}, False, False),
        ({"state": RUNNING, "newest": False}, False, False),
        ({"state": RUNNING, "lease_until": NOW}, False, False),
        ({"state": RUNNING, "lease_until": NOW + TICK}, True, True),
        ({"state": RUNNING, "cancel_requested": True}, True, True),
    ],
)
def test_authority_is_a_running_lease_of_the_newest_attempt(
    given: dict[str, Any], active: bool, may_report: bool
) -> None:
    one = standing(**given)
    assert (one.active, one.may_report) == (active, may_report)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"newest": False, "state": ENDED}, ErrorCode.STALE_EPOCH),
        ({"state": ENDED}, ErrorCode.STATE_CONFLICT),
        ({"lease_until": NOW}, ErrorCode.STATE_CONFLICT),
        ({"state": RUNNING}, ErrorCode.STATE_CONFLICT),
        ({"cancel_requested": True}, ErrorCode.STATE_CONFLICT),
        ({"deadline_at": NOW}, ErrorCode.STATE_CONFLICT),
        ({"latest_start_at": NOW}, ErrorCode.STATE_CONFLICT),
    ],
)
def test_a_start_is_refused(given: dict[str, Any], code: ErrorCode) -> None:
    with pytest.raises(ApiError) as caught:
        authority.start(standing(**given), 30, 60_000)
    assert caught.value.code is code


@pytest.mark.parametrize(
    ("given", "timeout_ms", "lease_until"),
    [
        ({}, 60_000, NOW + 30 * S),
        ({}, 29_999, NOW + 30 * S - S / 1000),
        ({"deadline_at": NOW + 7 * S}, 60_000, NOW + 7 * S),
        ({"deadline_at": NOW + TICK, "latest_start_at": NOW + TICK}, 60_000, NOW + TICK),
        # Once it has started, the latest start has no say.
        ({"latest_start_at": NOW + S}, 60_000, NOW + 30 * S),
    ],
)
def test_a_start_grants_a_lease_within_timeout_and_deadline(
    given: dict[str, Any], timeout_ms: int, lease_until: datetime
) -> None:
    grant = authority.start(standing(**given), 30, timeout_ms)
    assert grant == Grant(lease_until, NOW + timedelta(milliseconds=timeout_ms))


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"newest": False}, ErrorCode.STALE_EPOCH),
        ({"state": ENDED}, ErrorCode.STATE_CONFLICT),
        ({"state": RUNNING, "lease_until": NOW}, ErrorCode.STATE_CONFLICT),
    ],
)
def test_a_renewal_is_refused(given: dict[str, Any], code: ErrorCode) -> None:
    with pytest.raises(ApiError) as caught:
        authority.renew(standing(**given), 30)
    assert caught.value.code is code


@pytest.mark.parametrize(
    ("given", "lease_until"),
    [
        ({}, NOW + 30 * S),
        ({"latest_start_at": NOW + 20 * S}, NOW + 20 * S),
        ({"state": RUNNING, "latest_start_at": NOW + 20 * S, "timeout_at": NOW + 60 * S}, NOW + 30 * S),
        ({"state": RUNNING, "timeout_at": NOW + 12 * S}, NOW + 12 * S),
        ({"state": RUNNING, "timeout_at": NOW + 12 * S, "deadline_at": NOW + 11 * S}, NOW + 11 * S),
        # To stop and to report takes time: the intent does not take the lease.
        ({"state": RUNNING, "timeout_at": NOW + 60 * S, "cancel_requested": True}, NOW + 30 * S),
    ],
)
def test_a_renewal_never_passes_a_bound(given: dict[str, Any], lease_until: datetime) -> None:
    one = standing(**given)
    assert authority.renew(one, 30) == Grant(lease_until, one.timeout_at)


@pytest.mark.parametrize(
    ("deadline", "latest", "lease"), [(60, None, 30), (20, None, 20), (60, 10, 10), (5, 10, 5), (60, 40, 30)]
)
def test_a_claim_holds_no_longer_than_the_task_may_start(deadline: int, latest: int | None, lease: int) -> None:
    until = authority.reserve(
        NOW, 30, deadline_at=NOW + deadline * S, latest_start_at=None if latest is None else NOW + latest * S
    )
    assert until == NOW + lease * S


def test_dispatch_goes_by_priority_and_age_then_due_time_then_id() -> None:
    # (name, priority, waited in seconds), in the order they must have; by hand: min(9, priority + waited // 30).
    wanted = [
        ("starved", 0, 1000),  # 9, and the oldest of these
        ("urgent", 9, 500),  # 9 and not 25
        ("aged", 3, 180),  # 9
        ("a-eight", 8, 29.999999),  # 8
        ("b-eight", 8, 29.999999),
        ("seven", 6, 30),  # 7
        ("six", 6, 29.999999),  # 6
        ("zero", 0, 0),
    ]
    rows = [
        (name, dispatch.place(NOW, priority=priority, available_at=NOW - timedelta(seconds=waited), task_id=name))
        for name, priority, waited in reversed(wanted)
    ]
    assert [name for name, _ in sorted(rows, key=lambda row: row[1])] == [name for name, _, _ in wanted]


@pytest.mark.parametrize(
    ("now", "window_ms", "start"),
    [
        (datetime(2026, 1, 31, 8, 15, 30, 999999), 1_000, datetime(2026, 1, 31, 8, 15, 30)),  # noqa: DTZ001
        (datetime(2026, 1, 31, 8, 15, 30), 1_000, datetime(2026, 1, 31, 8, 15, 30)),  # noqa: DTZ001
        (datetime(2026, 1, 31, 8, 15, 30), 86_400_000, datetime(2026, 1, 31)),  # noqa: DTZ001
        (datetime(2026, 1, 31, 8, 15, 30), 900_000, datetime(2026, 1, 31, 8, 15)),  # noqa: DTZ001
    ],
)
def test_windows_lie_side_by_side(now: datetime, window_ms: int, start: datetime) -> None:
    assert dispatch.window_start(now, window_ms) == start


@pytest.mark.parametrize(
    ("given", "room"),
    [
        ({}, 5),
        ({"concurrency_limit": 7, "opened": 3}, 4),
        ({"concurrency_limit": 7, "opened": 7}, 0),
        ({"concurrency_limit": 7, "opened": 9}, 0),
        ({"start_limit": 4, "starts": 1, "unstarted": 1}, 2),
        ({"start_limit": 4, "starts": 4}, 0),
        ({"start_limit": 4, "starts": 3, "unstarted": 2}, 0),
        ({"start_limit": 100, "starts": 0, "concurrency_limit": 2, "opened": 1}, 1),
    ],
)
def test_a_queues_limits_leave_room(given: dict[str, int], room: int) -> None:
    values: dict[str, Any] = {"concurrency_limit": None, "opened": 0, "start_limit": None, "starts": 0, "unstarted": 0}
    assert dispatch.room_of(5, **(values | given)) == room

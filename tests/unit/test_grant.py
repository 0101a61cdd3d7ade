"""The local deadline of a lease."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from orbit.protocol.grant import local_deadline

SERVER = datetime(2026, 11, 30, 8, 0, 0, tzinfo=UTC)


def test_the_window_counts_from_the_call_less_the_margin() -> None:
    assert local_deadline(1_000.0, SERVER + timedelta(seconds=30), SERVER, 0.25) == pytest.approx(1_029.75)


def test_microseconds_count() -> None:
    assert local_deadline(0.0, SERVER + timedelta(microseconds=1_500_001), SERVER, 0.0) == pytest.approx(1.500001)


def test_a_wall_clock_a_day_off_grants_nothing_extra() -> None:
    for skew in (timedelta(days=-1), timedelta(0), timedelta(days=1)):
        assert local_deadline(5.0, SERVER + skew + timedelta(seconds=30), SERVER + skew, 0.25) == pytest.approx(34.75)


def test_a_lease_that_is_over_gives_a_deadline_in_the_past() -> None:
    assert local_deadline(1_000.0, SERVER - timedelta(seconds=1), SERVER, 0.25) == pytest.approx(998.75)
    assert local_deadline(1_000.0, SERVER, SERVER, 0.25) < 1_000.0

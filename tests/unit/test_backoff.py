"""The wait before dialling again."""

from __future__ import annotations

import pytest

from orbit.protocol.backoff import reconnect_delay


@pytest.mark.parametrize(
    ("attempt", "ceiling"),
    [(0, 0.2), (1, 0.4), (2, 0.8), (3, 1.6), (4, 3.2), (5, 6.4), (6, 12.8), (7, 15.0), (8, 15.0), (1_000_000, 15.0)],
)
def test_the_ceiling_doubles_to_fifteen_seconds(attempt: int, ceiling: float) -> None:
    assert reconnect_delay(attempt, 0.5) == pytest.approx(ceiling / 2)
    assert reconnect_delay(attempt, 0.999) == pytest.approx(ceiling * 0.999)


def test_jitter_covers_everything_below_the_ceiling() -> None:
    assert reconnect_delay(5, 0.0) == 0.0
    assert reconnect_delay(-1, 0.5) == pytest.approx(0.1)

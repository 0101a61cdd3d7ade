"""The wait before a task's next attempt. The golden vectors were made without the code; the file says how."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbit.protocol.retry import retry_delay_ms

GOLDEN = json.loads(Path(__file__).with_name("data").joinpath("backoff.json").read_text("utf-8"))["vectors"]

ids = st.integers(0, 2**128 - 1).map(lambda number: f"{number:032x}")
delays = st.integers(1, 86_400_000)
counts = st.integers(1, 64) | st.integers(1, 2**64 - 1)


@pytest.mark.parametrize(
    "vector",
    GOLDEN,
    ids=[f"{one['attempt_count']} of {one['initial_delay_ms']} to {one['max_delay_ms']}" for one in GOLDEN],
)
def test_golden(vector: dict[str, Any]) -> None:
    assert delay_of(**{name: vector[name] for name in ARGUMENTS}) == vector["delay_ms"]


ARGUMENTS = ("attempt_count", "initial_delay_ms", "max_delay_ms", "attempt_id")


def delay_of(attempt_count: int, initial_delay_ms: int, max_delay_ms: int, attempt_id: str) -> int:
    return retry_delay_ms(
        attempt_count, initial_delay_ms=initial_delay_ms, max_delay_ms=max_delay_ms, attempt_id=attempt_id
    )


def test_the_golden_vectors_reach_both_ends_and_every_border() -> None:
    assert {2 * one["delay_ms"] - one["base_ms"] for one in GOLDEN if one["base_ms"] % 2 == 0} >= {0, 2, 4}
    assert any(one["delay_ms"] == one["base_ms"] > 1 for one in GOLDEN)
    assert any(one["attempt_count"] > 2**63 for one in GOLDEN)
    assert any(one["base_ms"] > 2**63 for one in GOLDEN)
    assert any(one["base_ms"] % 2 for one in GOLDEN if one["base_ms"] > 1)
    assert any(one["initial_delay_ms"] > one["max_delay_ms"] for one in GOLDEN)


@given(counts, delays, delays, ids)
def test_the_delay_lies_in_the_upper_half_of_the_base(count: int, initial: int, most: int, attempt_id: str) -> None:
    base = min(initial, most)
    for _ in range(min(count - 1, 40)):  # 2^40 ms is beyond every maximum
        base = min(base * 2, most)
    delay = delay_of(count, initial, most, attempt_id)
    assert base <= 2 * delay <= 2 * base
    assert delay == delay_of(count, initial, most, attempt_id), "the same attempt waits the same time"


@given(st.integers(1, 30), delays, ids)
def test_a_later_attempt_never_waits_for_less_than_half_of_what_an_earlier_one_did(
    count: int, initial: int, attempt_id: str
) -> None:
    earlier, later = (delay_of(one, initial, 86_400_000, attempt_id) for one in (count, count + 1))
    assert 2 * later >= earlier


def test_attempts_are_spread() -> None:
    waits = {delay_of(3, 1_000, 60_000, f"{number:032x}") for number in range(200)}
    assert len(waits) > 150
    assert min(waits) < 2_100
    assert max(waits) > 3_900

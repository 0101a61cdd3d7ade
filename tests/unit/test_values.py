"""Identifiers, counters, names, times and secrets: one accepted form each."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbit.protocol.errors import InvalidValue
from orbit.protocol.values import (
    Secret,
    format_time,
    new_id,
    parse_counter,
    parse_id,
    parse_key,
    parse_name,
    parse_time,
)

ZERO_SECRET = "A" * 43
OTHER_SECRET = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"  # the bytes 0 to 31
# By sha256sum.
ZERO_DIGEST = "0f007385b6f9d4b7eeb2748605afe1a984a0a3bfa3f014d09e2a784ce9e5cd1a"

NOT_TEXT: list[Any] = [None, True, 7, 1.5, b"", [], {}]


def refused(parser: Callable[[object, str], object], value: object) -> None:
    with pytest.raises(InvalidValue) as caught:
        parser(value, "body.member")
    assert caught.value.path == "body.member"
    if isinstance(value, str) and len(value) > 3:
        assert value not in str(caught.value)


def test_ids() -> None:
    assert parse_id("0123456789abcdef0123456789abcdef", "p") == "0123456789abcdef0123456789abcdef"
    for value in [
        "",
        "0" * 31,
        "0" * 33,
        "A" * 32,
        "g" * 32,
        "0" * 31 + "\n",
        "0" * 32 + "\n",
        " " + "0" * 31,
        "\u0660" * 32,
    ]:
        refused(parse_id, value)
    for value in NOT_TEXT:
        refused(parse_id, value)


def test_new_ids_are_ids_and_differ() -> None:
    made = {new_id() for _ in range(1_000)}
    assert len(made) == 1_000
    assert all(parse_id(one, "p") == one for one in made)


def test_counters() -> None:
    assert parse_counter("1", "p") == 1
    assert parse_counter("18446744073709551615", "p") == 18446744073709551615
    for value in [
        "",
        "0",
        "00",
        "01",
        "+1",
        "-1",
        "1.0",
        "1e3",
        " 1",
        "1\n",
        "18446744073709551616",
        "9" * 5_000,
        "\u0661",
    ]:
        refused(parse_counter, value)
    for value in NOT_TEXT:
        refused(parse_counter, value)


def test_names() -> None:
    for value in ["a", "0", "A.b_c-d", "x" * 64]:
        assert parse_name(value, "p") == value
    for value in ["", "x" * 65, ".a", "-a", "_a", "a b", "a\n", "\u00e9", "a/b"]:
        refused(parse_name, value)
    assert parse_name("abc", "p", max_length=3) == "abc"
    with pytest.raises(InvalidValue, match="1 to 3 ASCII"):
        parse_name("abcd", "p", max_length=3)


def test_keys_are_visible_ascii() -> None:
    for key in ["!", "~", "!~" * 64]:
        assert parse_key(key, "p") == key
    for value in ["", " ", "a b", "a\n", "\u00e9", "a" * 129, 7, None]:
        refused(parse_key, value)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-30T08:15:30Z", datetime(2026, 11, 30, 8, 15, 30, tzinfo=UTC)),
        ("2026-11-30T08:15:30.25Z", datetime(2026, 11, 30, 8, 15, 30, 250_000, tzinfo=UTC)),
        ("2026-11-30T08:15:30.000001Z", datetime(2026, 11, 30, 8, 15, 30, 1, tzinfo=UTC)),
        ("2024-02-29T23:59:59Z", datetime(2024, 2, 29, 23, 59, 59, tzinfo=UTC)),
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
        ("9999-12-31T23:59:59.999999Z", datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
    ],
)
def test_times_are_read_and_written(text: str, moment: datetime) -> None:
    assert parse_time(text, "p") == moment
    assert format_time(moment) == text


def test_wrong_times() -> None:
    for value in [
        "", "2026-11-30", "2026-11-30T08:15:30", "2026-11-30 08:15:30Z", "2026-11-30T08:15:30z", "2026-11-30t08:15:30Z",
        "2026-11-30T08:15:30+00:00", "2026-11-30T08:15:30.Z", "2026-11-30T08:15:30.1234567Z", "2026-11-30T08:15:30Z\n",
        "2026-02-30T08:15:30Z", "2025-02-29T08:15:30Z", "2026-13-01T08:15:30Z", "2026-11-30T24:00:00Z",
        "2026-11-30T08:60:00Z", "2026-11-30T23:59:60Z", "0000-01-01T00:00:00Z", "\u0662026-11-30T08:15:30Z",
        "20261130T081530Z",
    ]:  # fmt: skip
        refused(parse_time, value)
    for value in NOT_TEXT:
        refused(parse_time, value)


def test_times_of_other_zones_are_written_in_utc_and_naive_ones_are_utc() -> None:
    east = timezone(timedelta(hours=8))
    assert format_time(datetime(2026, 11, 30, 8, 0, tzinfo=east)) == "2026-11-30T00:00:00Z"
    assert format_time(datetime(2026, 11, 30, 8, 0)) == "2026-11-30T08:00:00Z"  # noqa: DTZ001 - a DATETIME column's value


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_written_time_is_read_back(moment: datetime) -> None:
    assert parse_time(format_time(moment), "p") == moment


def test_secrets_are_canonical_base64url_of_32_bytes() -> None:
    assert Secret.parse(OTHER_SECRET, "p").reveal() == OTHER_SECRET
    for value in [
        "", "A" * 42, "A" * 44, "A" * 43 + "=", "A" * 42 + "B", "A" * 42 + "\n", "A" * 42 + "+", "A" * 42 + "/",
        "A" * 43 + "\n", "\u0410" * 43,
    ]:  # fmt: skip
        refused(Secret.parse, value)
    for value in NOT_TEXT:
        refused(Secret.parse, value)
    assert {len(Secret.new().reveal()) for _ in range(50)} == {43}
    for _ in range(50):
        made = Secret.new()
        assert Secret.parse(made.reveal(), "p") == made


def test_a_secret_is_compared_by_digest_and_by_value() -> None:
    zero, other = Secret.parse(ZERO_SECRET, "p"), Secret.parse(OTHER_SECRET, "p")
    assert zero.digest() == ZERO_DIGEST
    assert zero.matches(ZERO_DIGEST)
    assert not other.matches(ZERO_DIGEST)
    assert zero == Secret.parse(ZERO_SECRET, "p")
    assert zero != other
    assert zero != ZERO_SECRET
    assert len({zero, Secret.parse(ZERO_SECRET, "p"), other}) == 2


def test_a_secret_does_not_show_itself() -> None:
    secret = Secret.parse(OTHER_SECRET, "p")
    assert OTHER_SECRET not in f"{secret} {secret!r} {[secret]}"
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    with pytest.raises(TypeError):
        copy.copy(secret)

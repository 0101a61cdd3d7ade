"""Values as SQL literals for NO_BACKSLASH_ESCAPES. That MySQL reads them back the same is tested on MySQL."""

from __future__ import annotations

import traceback
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any

import pytest

from orbit.mysql.literals import Unsendable, literal


class _Word(StrEnum):
    IT_IS = "it's"


class _Number(IntEnum):
    SEVEN = 7


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"),
        (True, "1"),
        (False, "0"),
        (-3, "-3"),
        (2**64, "18446744073709551616"),
        (_Number.SEVEN, "7"),
        ("", "''"),
        ("it's", "'it''s'"),
        ("'; DROP TABLE t; --", "'''; DROP TABLE t; --'"),
        ("\\'", "'\\'''"),
        ("100%s\n\x00", "'100%s\n\x00'"),
        ("你'好😀", "'你''好😀'"),
        (_Word.IT_IS, "'it''s'"),
        (b"", "_binary X''"),
        (b"\x00'\\\xff", "_binary X'00275cff'"),
        (Decimal("1.10"), "1.10"),
        (Decimal("1E+3"), "1000"),
        (1.5, "1.5e0"),
        (1e300, "1e+300"),
        (datetime(2026, 1, 2, 3, 4, 5), "'2026-01-02 03:04:05.000000'"),  # noqa: DTZ001 - what the driver returns
        (datetime(2026, 1, 2, 3, 4, 5, 6, UTC), "'2026-01-02 03:04:05.000006'"),
        (datetime(2026, 1, 2, 1, 0, tzinfo=timezone(timedelta(hours=3))), "'2026-01-01 22:00:00.000000'"),
    ],
)
def test_a_value_is_written_exactly(value: Any, text: str) -> None:
    assert literal(value) == text


@pytest.mark.parametrize("value", ["canary\ud800", "\udfff", "a\udc80"])
def test_a_lone_surrogate_cannot_be_sent_and_is_not_quoted(value: str) -> None:
    with pytest.raises(Unsendable) as caught:
        literal(value)
    assert str(caught.value) == "text with a lone surrogate"
    # The codec's own error holds the whole text.
    assert "canary" not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__context__ is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), Decimal("NaN"), Decimal("-Infinity")])
def test_a_number_that_is_not_finite_cannot_be_sent(value: Any) -> None:
    with pytest.raises(Unsendable, match=r"^a number that is not finite$"):
        literal(value)


@pytest.mark.parametrize("value", [{}, {1}, object(), date(2026, 1, 1), timedelta(1), 1j, bytearray(b"x")])
def test_other_types_are_refused_by_name(value: Any) -> None:
    with pytest.raises(TypeError, match=f"^a statement cannot be given a {type(value).__name__}$"):
        literal(value)

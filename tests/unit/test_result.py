"""A result on the wire: one text, strict, bounded in bytes and in nesting, numbers kept."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbit.protocol.errors import InvalidValue
from orbit.protocol.limits import Limits
from orbit.protocol.result import RESULT_BYTES_MAX, RESULT_DEPTH_MAX, check_numbers, result_text


def nested(levels: int) -> Any:
    value: Any = True
    for _ in range(levels):
        value = [value]
    return value


def refusal(value: Any) -> str:
    with pytest.raises(InvalidValue) as caught:
        result_text(value)
    assert caught.value.path == "result"
    assert caught.value.__context__ is None, "an exception of the parser may hold the document"
    return caught.value.reason


def test_the_bounds_are_those_of_the_seed() -> None:
    assert RESULT_BYTES_MAX == 262_144
    # A report nests the result in frame and body, a delivery in frame, body and event.
    assert Limits().json_depth > RESULT_DEPTH_MAX + 3


@pytest.mark.parametrize(
    ("received", "text"),
    [
        (b' { "b" : 1.10, "a" : [ true, null ] } ', '{"a":[true,null],"b":1.10}'),
        (b'"\\u4e2d\\ud83d\\ude00"', '"\u4e2d\U0001f600"'),
        (b"1e99999", "1e99999"),
        (b"-0.0", "-0.0"),
        (b"false", "false"),
        (b'""', '""'),
        (b"{}", "{}"),
    ],
)
def test_a_document_has_one_text_and_numbers_keep_theirs(received: bytes, text: str) -> None:
    assert result_text(received) == text
    assert result_text(msgspec.Raw(received)) == text
    assert result_text(text.encode()) == text


def test_a_parsed_value_is_taken_as_well() -> None:
    assert result_text({"b": 1, "a": [msgspec.Raw(b"1.10"), None]}) == '{"a":[1.10,null],"b":1}'


@pytest.mark.parametrize("value", [None, b"null", b" null ", msgspec.Raw(b"null")])
def test_null_is_no_result(value: Any) -> None:
    assert refusal(value) == "must not be null; leave it out"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"a": 1, "a": 1}', "a member name occurs twice in an object"),
        (b'{"a": 1, "\\u0061": 1}', "a member name occurs twice in an object"),
        (b'"\\ud800"', "half of a surrogate pair"),
        (b'{"\\udc00": 1}', "half of a surrogate pair"),
        ("\ud800", "half of a surrogate pair"),
        ({"\udc00": 1}, "half of a surrogate pair"),
        (b'"\xff"', "not UTF-8"),
        (b"NaN", "a number that is not finite"),
        (b"[1,]", "a value is missing"),
        (b"hunter2", "a value is missing"),
        (b"", "a value is missing"),
        (b"1 2", "text after the value"),
    ],
)
def test_what_is_not_strict_json_is_refused_without_quoting_it(value: Any, reason: str) -> None:
    assert refusal(value) == f"is not strict JSON: {reason}"


def test_nesting_is_bounded_for_documents_and_values_alike() -> None:
    deepest = nested(28)
    assert result_text(deepest) == result_text(json.dumps(deepest).encode())
    assert refusal(nested(29)) == "nests more than 28 levels deep"
    assert refusal(json.dumps(nested(29)).encode()) == "is not strict JSON: nested more than 28 levels deep"


def test_size_is_counted_in_bytes_of_the_text() -> None:
    assert len(result_text("x" * 262_142)) == 262_144
    assert refusal("x" * 262_143) == "is larger than 262144 bytes"
    # 87,381 characters of three bytes and two quotes: one byte too many. Escapes and blanks do not count.
    assert refusal("\u4e2d" * 87_381) == "is larger than 262144 bytes"
    assert len(result_text(json.dumps("\u4e2d" * 80_000).encode()).encode()) == 240_002
    assert result_text(b"1" + b" " * 300_000) == "1"
    assert refusal(b"1" + b" " * 524_288) == "is not strict JSON: larger than the limit"


def test_the_range_of_numbers_is_the_servers_last_check() -> None:
    check_numbers('{"a":[1e9999,-1E-9999,' + "1" * 5_000 + "]}", Limits())
    for text in ("1e10000", '{"a":[0,1e-10000]}', "[" + "1" * 5_001 + "]"):
        assert result_text(text.encode()) == text
        with pytest.raises(InvalidValue) as caught:
            check_numbers(text, Limits())
        assert caught.value.path == "body.result"
    check_numbers('"1e10000"', Limits())


_json = st.recursive(
    st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(_json)
def test_a_text_is_a_fixed_point(value: Any) -> None:
    text = result_text(json.dumps(value).encode())
    assert json.loads(text) == value
    assert result_text(text.encode()) == text

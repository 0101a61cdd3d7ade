"""Strict JSON: what is accepted, what is refused and where, and that hostile bytes cost no more than honest ones."""

from __future__ import annotations

import gc
import json
import pickle
import subprocess
import sys
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orbit.protocol import strict_json
from orbit.protocol.errors import InvalidJSON, InvalidValue
from orbit.protocol.limits import Limits

FRAME = Limits().frame_bytes
SECRET = "hunter2"


def parse(data: bytes, *, max_bytes: int = FRAME, max_depth: int = 32) -> Any:
    return strict_json.parse(data, max_bytes=max_bytes, max_depth=max_depth)


def plain(value: Any) -> Any:
    """`value` with every number as its text in a tuple, so that == compares exact text."""
    if isinstance(value, msgspec.Raw):
        return ("number", bytes(value).decode())
    if isinstance(value, dict):
        return {key: plain(member) for key, member in value.items()}
    if isinstance(value, list):
        return [plain(member) for member in value]
    return value


def number(text: str) -> tuple[str, str]:
    return ("number", text)


ACCEPTED: list[tuple[bytes, Any]] = [
    (b"null", None),
    (b"true", True),
    (b" \t\r\n false \n", False),
    (b'""', ""),
    (b"[]", []),
    (b"{}", {}),
    (b'{"a":[1,{"b":null}],"c":"d"}', {"a": [number("1"), {"b": None}], "c": "d"}),
    (b'{"":0}', {"": number("0")}),
    (b'"\\u0000"', "\0"),
    (b'{"\\u0000":1}', {"\0": number("1")}),
    (b'"\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041"', '"\\/\b\f\n\r\tA'),
    (b'"\\ud83d\\ude00"', "\U0001f600"),
    (b'"\\uD83D\\uDE00"', "\U0001f600"),
    ('"\U0001f600\u2028\u2029\x7f\ufffe\U0010ffff"'.encode(), "\U0001f600\u2028\u2029\x7f\ufffe\U0010ffff"),
    # A byte order mark is an ordinary character anywhere but at the start.
    ('["\ufeff"]'.encode(), ["\ufeff"]),
    # An escaped backslash before "ud800" is no escape at all.
    (b'"\\\\ud800"', "\\ud800"),
    # Unicode equivalence is not equality: the precomposed letter and its decomposition are two names.
    ('{"\u00e9":1,"e\u0301":2}'.encode(), {"\u00e9": number("1"), "e\u0301": number("2")}),
    (b'{"a":1,"A":2}', {"a": number("1"), "A": number("2")}),
    # The same name in different objects is no duplicate.
    (b'{"a":{"a":{"a":1}},"b":[{"a":1},{"a":1}]}', None),
    (b'["[[[[[","}}}}","\\"[[["]', ["[[[[[", "}}}}", '"[[[']),
]


@pytest.mark.parametrize(("data", "expected"), ACCEPTED, ids=[repr(data[:30]) for data, _ in ACCEPTED])
def test_accepts_a_document_of_the_standard(data: bytes, expected: Any) -> None:
    value = plain(parse(data))
    if expected is not None:
        assert value == expected
    assert json.loads(data) == json.loads(strict_json.canonical(parse(data)))


@pytest.mark.parametrize(
    "text",
    [
        "0", "-0", "-0.0", "1.10", "1E400", "1e400", "1e+05", "1E-5", "1.0", "18446744073709551617.10",
        "1.000000000000000005", "0e0", "-1e-99999", "1" * 5_000, "0." + "9" * 5_000, "123456789" * 20_000,
    ],
    ids=lambda text: f"{text[:24]}-{len(text)}",
)  # fmt: skip
def test_a_number_keeps_its_exact_text(text: str) -> None:
    assert bytes(parse(text.encode())).decode() == text
    nested = f'{{"n":[{text},{{"m":{text}}}]}}'.encode()
    assert plain(parse(nested)) == {"n": [number(text), {"m": number(text)}]}
    assert strict_json.canonical(parse(nested)) == f'{{"n":[{text},{{"m":{text}}}]}}'.encode()


REFUSED: list[tuple[bytes, int, str]] = [
    # Nothing, or too much of it.
    (b"", 0, "a value is missing"),
    (b"   ", 3, "a value is missing"),
    (b"nul", 0, "a value is missing"),
    (b"True", 0, "a value is missing"),
    (b"[1] 2", 4, "text after the value"),
    (b"{}{}", 2, "text after the value"),
    (b"1\x00", 1, "text after the value"),
    (b"[]\x0c", 2, "text after the value"),
    (b"[]\xc2\xa0", 2, "text after the value"),
    # Structure.
    (b"[", 1, "a value is missing"),
    (b"[1", 2, "a comma or a closing bracket is missing"),
    (b"[1,]", 3, "a value is missing"),
    (b"[1 , \n]", 6, "a value is missing"),
    (b"[,1]", 1, "a value is missing"),
    (b"[1 2]", 3, "a comma or a closing bracket is missing"),
    (b"[1}", 2, "a comma or a closing bracket is missing"),
    (b"]", 0, "a value is missing"),
    (b"{1:2}", 1, "a member name is missing"),
    (b"{'a':1}", 1, "a member name is missing"),
    (b'{"a":1,}', 7, "a member name is missing"),
    (b'{"a":1, }', 8, "a member name is missing"),
    (b'{"a" 1}', 5, "a colon is missing"),
    (b'{"a":}', 5, "a value is missing"),
    (b"[1]//", 3, "text after the value"),
    (b"/**/1", 0, "a value is missing"),
    # Numbers.
    (b"01", 1, "text after the value"),
    (b"-01", 2, "text after the value"),
    (b"1.", 1, "text after the value"),
    (b".5", 0, "a value is missing"),
    (b"+1", 0, "a value is missing"),
    (b"-", 0, "a value is missing"),
    (b"1e", 1, "text after the value"),
    (b"0x10", 1, "text after the value"),
    ("[\u0661]".encode(), 1, "a value is missing"),
    (b"[1_000]", 2, "a comma or a closing bracket is missing"),
    (b"NaN", 0, "a number that is not finite"),
    (b'["NaN",Infinity]', 7, "a number that is not finite"),
    (b'{"Infinity":-Infinity}', 12, "a number that is not finite"),
    (b"[-1,-NaN]", 4, "a value is missing"),
    (b"nan", 0, "a value is missing"),
    # Strings.
    (b'"abc', 0, "a string does not end"),
    (b'"abc\\"', 0, "a string does not end"),
    (b'["a\x00"]', 3, "a control character in a string"),
    (b'"\t"', 1, "a control character in a string"),
    (b'"\x1f"', 1, "a control character in a string"),
    (b'"\\x41"', 1, "an unknown escape"),
    (b'"\\u12"', 2, "an unknown escape"),
    (b'"\\u12g4"', 2, "an unknown escape"),
    (b'"\\U0041"', 1, "an unknown escape"),
    # Bytes.
    (b"\xef\xbb\xbf{}", 0, "a byte order mark"),
    (b'"\xff"', 1, "not UTF-8"),
    (b'"\xc0\xaf"', 1, "not UTF-8"),
    (b'"\xe0\x80\x80"', 1, "not UTF-8"),
    (b'"\xf0\x82\x82\xac"', 1, "not UTF-8"),
    (b'"\xed\xa0\x80"', 1, "not UTF-8"),
    (b'"\xed\xa0\xbd\xed\xb8\x80"', 1, "not UTF-8"),
    (b'"\xf4\x90\x80\x80"', 1, "not UTF-8"),
    (b'"\xe4\xb8"', 1, "not UTF-8"),
    (b'"caf\xe9"', 4, "not UTF-8"),
    ('"a"'.encode("utf-16"), 0, "not UTF-8"),
    ('"a"'.encode("utf-16-le"), 1, "a control character in a string"),
    ('"a"'.encode("utf-16-be"), 0, "a value is missing"),
    ('"a"'.encode("utf-32-be"), 0, "a value is missing"),
    # Halves of surrogate pairs, in names and in values.
    (b'"\\ud800"', 1, "half of a surrogate pair"),
    (b'"\\uDFFF"', 1, "half of a surrogate pair"),
    (b'{"\\udc00":1}', 2, "half of a surrogate pair"),
    (b'["\\ud83d\\ude00","\\ude00\\ud83d"]', 17, "half of a surrogate pair"),
    (b'"\\ud800\\ud800\\udc00"', 1, "half of a surrogate pair"),
    (b'"\\ud800\\n"', 1, "half of a surrogate pair"),
    (b'"\\ud800\\u0041"', 1, "half of a surrogate pair"),
    (b'["\\ud800","\\udc00"]', 2, "half of a surrogate pair"),
    ('["\u4e2d\u6587","\\ud800"]'.encode(), 11, "half of a surrogate pair"),
    # Names that occur twice; they are compared after unescaping.
    (b'{"a":1,"a":1}', 7, "a member name occurs twice in an object"),
    (b'{"a":1,"\\u0061":2}', 7, "a member name occurs twice in an object"),
    (b'{"/":1,"\\/":2}', 7, "a member name occurs twice in an object"),
    ('{"\U0001f600":1,"\\ud83d\\ude00" :2}'.encode(), 10, "a member name occurs twice in an object"),
    (b'{"":1,"":2}', 6, "a member name occurs twice in an object"),
    (b'[{"a":"a","b":{"a":["a",{"c":1 , "c" : 2}]}}]', 33, "a member name occurs twice in an object"),
    ('{"\u4e2d":1,"b":[{"\u4e2d":1}],"\u4e2d":2}'.encode(), 25, "a member name occurs twice in an object"),
    # The offset counts bytes where characters would give a smaller number.
    ('["\u4e2d\u6587",]'.encode(), 10, "a value is missing"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "offset", "reason"), REFUSED, ids=[repr(data[:40]) for data, _, _ in REFUSED])
def test_refuses_and_says_where_and_why(data: bytes, offset: int, reason: str) -> None:
    with pytest.raises(InvalidJSON) as caught:
        parse(data)
    assert (caught.value.offset, caught.value.reason) == (offset, reason)


def test_every_proper_prefix_of_an_object_is_refused() -> None:
    document = '{"a":[1,-2.5e3,"\u4e2d\\u00e9\\ud83d\\ude00",{"b":null,"c":true}],"d":{}}'.encode()
    assert isinstance(parse(document), dict)
    for end in range(len(document)):
        with pytest.raises(InvalidJSON) as caught:
            parse(document[:end])
        assert 0 <= caught.value.offset <= end


def test_a_flipped_bit_never_passes_where_the_standard_library_refuses() -> None:
    document = '{"a":[1,-2.5e3,"\u4e2d\\u00e9\\ud83d\\ude00",{"b":null,"c":true}],"d":"a\\nb"}'.encode()
    accepted = 0
    for position in range(len(document)):
        for bit in range(8):
            flipped = bytearray(document)
            flipped[position] ^= 1 << bit
            try:
                value = parse(bytes(flipped))
            except InvalidJSON:
                continue
            accepted += 1
            assert json.loads(bytes(flipped)) == json.loads(strict_json.canonical(value))
    assert accepted > 0


def nested(depth: int) -> bytes:
    """Arrays and objects in turn, `depth` levels of them."""
    openers = [b"[", b'{"[":']
    return (
        b"".join(openers[i % 2] for i in range(depth))
        + b"0"
        + b"".join([b"]", b"}"][i % 2] for i in reversed(range(depth)))
    )


def test_nesting_is_accepted_at_the_limit_and_refused_one_level_deeper() -> None:
    assert strict_json.depth(parse(nested(32))) == 32
    with pytest.raises(InvalidJSON) as caught:
        parse(nested(33))
    assert caught.value.offset == 32 // 2 * 6
    assert caught.value.reason == "nested more than 32 levels deep"
    assert parse(b"[]", max_depth=1) == []
    with pytest.raises(InvalidJSON, match="nested more than 1 levels deep"):
        parse(b"[[]]", max_depth=1)
    with pytest.raises(InvalidJSON, match="nested more than 0 levels deep"):
        parse(b"[]", max_depth=0)


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_arrays_and_objects_count_alike(opening: bytes, closing: bytes) -> None:
    assert strict_json.depth(parse(opening * 32 + b"0" + closing * 32)) == 32
    with pytest.raises(InvalidJSON) as caught:
        parse(opening * 33 + b"0" + closing * 33)
    assert caught.value.offset == 32 * len(opening)


def test_many_shallow_brackets_are_not_deep() -> None:
    assert len(parse(b"[" + b",".join([b"[]"] * 1_000) + b"]")) == 1_000
    # The brackets in strings do not count, whatever escapes stand before a quote.
    assert len(parse(b"[" + b",".join([rb'"\\\"[[["', rb'"\\"'] * 500) + b"]")) == 1_000


def test_mismatched_brackets_cannot_hide_depth() -> None:
    with pytest.raises(InvalidJSON):
        parse(b"[}" * 40)
    with pytest.raises(InvalidJSON, match="nested more than 32"):
        parse(b"[" * 40 + b"}" * 40)


def test_size_is_checked_to_the_byte() -> None:
    document = b'"' + b"a" * (FRAME - 2) + b'"'
    assert len(parse(document)) == FRAME - 2
    with pytest.raises(InvalidJSON) as caught:
        parse(document + b" ")
    assert (caught.value.offset, caught.value.reason) == (FRAME, "larger than the limit")


@pytest.mark.parametrize(
    "data",
    [
        b'{"hunter2":"hunter2","hunter2":1}',
        b'["hunter2",hunter2]',
        b'["hunter2\xff"]',
        b'["hunter2\\ud800"]',
        b'["hunter2", NaN]',
        b'["hunter2"] hunter2',
        b"[" * 33 + b'"hunter2"' + b"]" * 33,
    ],
)
def test_a_failure_holds_nothing_of_the_document(data: bytes) -> None:
    with pytest.raises(InvalidJSON) as caught:
        parse(data)
    error: BaseException = caught.value
    assert error.__cause__ is None
    assert error.__context__ is None
    assert SECRET not in repr(error) + str(error) + repr(error.args) + repr(vars(error))


# --- Numbers -----------------------------------------------------------------


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("7", 7), ("-7", -7), ("64", 64), ("-64", -64)])
def test_as_int_takes_plain_digits(text: str, value: int) -> None:
    assert strict_json.as_int(parse(text.encode()), "n", -64, 64) == value


@pytest.mark.parametrize(
    "data", [b"65", b"-65", b"1.0", b"1e1", b"-0", b"0.0", b"true", b"null", b'"1"', b"[1]", b"9" * 5_000]
)
def test_as_int_refuses_everything_else(data: bytes) -> None:
    with pytest.raises(InvalidValue) as caught:
        strict_json.as_int(parse(data), "body.n", -64, 64)
    assert caught.value.path == "body.n"
    assert caught.value.reason == "must be an integer from -64 to 64"


def test_as_int_takes_an_int_that_code_wrote_but_no_bool_and_no_float() -> None:
    assert strict_json.as_int(64, "n", 0, 64) == 64
    for value in (65, True, 1.0):
        with pytest.raises(InvalidValue):
            strict_json.as_int(value, "n", 0, 64)


@pytest.mark.parametrize(
    "text",
    [
        "1" * 5_000,
        "-" + "1" * 5_000,
        "0." + "1" * 4_999,
        "1e9999",
        "1E+9999",
        "1e-9999",
        "1e0000000000009999",
        "1e0",
        "-0",
    ],
)
def test_number_bounds_accepts_up_to_the_bounds(text: str) -> None:
    strict_json.number_bounds(parse(f'{{"a":[{{"b":{text}}}]}}'.encode()), Limits())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1" * 5_001, "holds a number of more than 5000 digits"),
        ("0." + "1" * 5_000, "holds a number of more than 5000 digits"),
        ("1e10000", "holds a number with an exponent beyond 9999"),
        ("1E-10000", "holds a number with an exponent beyond 9999"),
        ("1e" + "9" * 5_000, "holds a number with an exponent beyond 9999"),
    ],
)
def test_number_bounds_refuses_beyond(text: str, reason: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        strict_json.number_bounds(parse(f'{{"a":[{{"b":{text}}}]}}'.encode()), Limits(), "payload")
    assert (caught.value.path, caught.value.reason) == ("payload", reason)


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"1", 0), (b'"[[["', 0), (b"[]", 1), (b"{}", 1), (b'{"a":[]}', 2), (b'[[],[[1]],{"a":1}]', 3)],
)
def test_depth_counts_levels(data: bytes, expected: int) -> None:
    assert strict_json.depth(parse(data)) == expected


# --- Canonical form ----------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b' { "b" : 1 , "a" : [ 1 , 2 ] } ', b'{"a":[1,2],"b":1}'),
        (b'{"b":{"d":1,"c":2},"a":1}', b'{"a":1,"b":{"c":2,"d":1}}'),
        (b'{"aa":1,"a":2,"":3,"B":4}', b'{"":3,"B":4,"a":2,"aa":1}'),
        # By code point, which is not the order of UTF-16 code units.
        ('{"\U00010000":1,"\uffff":2}'.encode(), '{"\uffff":2,"\U00010000":1}'.encode()),
        # The shortest escapes, and only where the standard demands one.
        (
            rb'"\u0022\u005c\u002f\u0008\u000c\u000a\u000d\u0009\u0000\u001F\u007f\u4e2d\u2028\ud83d\ude00"',
            b'"\\"\\\\/\\b\\f\\n\\r\\t\\u0000\\u001f\x7f\xe4\xb8\xad\xe2\x80\xa8\xf0\x9f\x98\x80"',
        ),
        (b"[1.10,-0,1E+05,1e400]", b"[1.10,-0,1E+05,1e400]"),
        # No Unicode normalisation: a letter and a combining accent stay two code points.
        ('"e\u0301"'.encode(), '"e\u0301"'.encode()),
        (b"[true,false,null,{},[]]", b"[true,false,null,{},[]]"),
    ],
)
def test_canonical_form_by_hand(data: bytes, expected: bytes) -> None:
    assert strict_json.canonical(parse(data)) == expected
    assert strict_json.canonical(parse(expected)) == expected


def test_canonical_writes_ints_and_splices_raw_text() -> None:
    assert strict_json.canonical({"n": 2**64, "e": msgspec.Raw(b'{"z":1,"a":2}')}) == (
        b'{"e":{"z":1,"a":2},"n":18446744073709551616}'
    )


@pytest.mark.parametrize("value", ["\ud800", {"\udc00": True}, ["hunter2\ud800"]])
def test_canonical_refuses_half_of_a_surrogate_pair(value: Any) -> None:
    with pytest.raises(InvalidJSON) as caught:
        strict_json.canonical(value)
    assert caught.value.reason == "half of a surrogate pair"
    assert caught.value.__context__ is None
    assert SECRET not in repr(caught.value)


# --- Against the standard library --------------------------------------------

_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
_values = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20
)
_pieces = st.lists(
    st.sampled_from(
        ["{", "}", "[", "]", ":", ",", '"', "\\", "\\u", "\\ud83d", "\\ude00", "d800", "a", "A", "0", "1", "-", ".",
         "e", "E5", "NaN", "Infinity", "true", "null", " ", "\n", "\x00", "\u4e2d", '"a"', '"a":1', "\ufeff", "[["]
    ),
    max_size=24,
).map("".join)  # fmt: skip


@given(_values, st.booleans())
def test_whatever_the_standard_library_writes_is_read_back(value: Any, ascii_only: bool) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only).encode()
    parsed = parse(data)
    assert json.loads(strict_json.canonical(parsed)) == value
    assert strict_json.canonical(parse(strict_json.canonical(parsed))) == strict_json.canonical(parsed)


@given(_pieces.map(str.encode) | st.binary(max_size=40))
@example(b'{"a":1,"\\u0061":2}')
def test_what_is_accepted_the_standard_library_accepts_with_the_same_value(data: bytes) -> None:
    try:
        value = parse(data)
    except InvalidJSON as error:
        refusal = error
    else:
        assert plain(value) == json.loads(data, parse_int=number, parse_float=number)
        return
    assert 0 <= refusal.offset <= len(data)
    assert refusal.__context__ is None


@given(st.dictionaries(st.text(), st.none(), min_size=1, max_size=6), st.data())
def test_a_repeated_name_is_found_wherever_it_stands(members: dict[str, None], data: st.DataObject) -> None:
    names = list(members)
    again = data.draw(st.sampled_from(names))
    at = data.draw(st.integers(names.index(again) + 1, len(names)))
    spelled = "".join(f"\\u{unit:04x}" for unit in _utf16(again))
    parts = [json.dumps(name, ensure_ascii=False) + ":null" for name in names]
    before = "{" + "".join(part + "," for part in parts[:at])
    document = (before + f'"{spelled}":null' + "".join("," + part for part in parts[at:]) + "}").encode()
    with pytest.raises(InvalidJSON) as caught:
        parse(document)
    assert caught.value.offset == len(before.encode())


def _utf16(text: str) -> list[int]:
    units = text.encode("utf-16-be")
    return [units[i] * 256 + units[i + 1] for i in range(0, len(units), 2)]


# --- Cost --------------------------------------------------------------------


def fill(unit: bytes, before: bytes = b"", after: bytes = b"") -> bytes:
    return before + unit * ((FRAME - len(before) - len(after)) // len(unit)) + after


HOSTILE: dict[str, bytes] = {
    "escaped quotes": fill(b'\\"', b'"', b'"'),
    "escaped quotes, open": fill(b'"\\"'),
    # Behind enough brackets for the check of depth to read the strings.
    "escaped quotes, open, behind brackets": fill(b'\\"', b"[" + b"[]," * 40 + b'"'),
    "escaped quotes, behind a string": fill(b'\\"', b"[" + b"[]," * 40 + b'""'),
    "escaped quotes, deep": fill(b'\\"', b"[" * 33 + b'"'),
    "backslashes": fill(b"\\", b'"'),
    "quotes": fill(b'"'),
    "strings": fill(b'"",', b"[", b'""]'),
    "empty arrays": fill(b"[],", b"[", b"[]]"),
    "empty objects": fill(b"{},", b"[", b"{}]"),
    "opening arrays": b"[" * FRAME,
    "opening objects": fill(b'[{"":'),
    "closing": b"]" * FRAME,
    "mismatched": fill(b"[}"),
    "zeros": fill(b"0,", b"[", b"0]"),
    "digits": b"1" * FRAME,
    "exponent": b"1e" + b"9" * (FRAME - 2),
    "minus signs": b"-" * FRAME,
    "blanks": fill(b" ", b"[", b"]"),
    "blanks after names": fill(b'"a"            ', b"{"),
    "pairs": fill(b"\\ud83d\\ude00", b'"', b'"'),
    "halves": fill(b"\\ud83d", b'"', b'"'),
    "half at the end": fill(b"\\n", b'"', b'\\ud800"'),
    "not finite at the end": fill(b'"NI",-1,', b"[", b"NaN]"),
    "deep at the end": fill(b"[[[]]],", b"[", b"[" * 40 + b"]" * 41),
    "many names, one twice": b"{" + b",".join(b'"%d":0' % i for i in range(45_000)) + b',"1":2}',
    "many objects, one twice": fill(b'{"a":"b"},', b"[", b'{"a":1,"a":1}]'),
    "colliding names": b"{" + b",".join(b'"%d":0' % (i * (2**61 - 1)) for i in range(20_000)) + b"}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_memory_stays_proportional_to_the_document(name: str) -> None:
    data = HOSTILE[name]
    gc.collect()
    tracemalloc.start()
    try:
        try:
            value = parse(data)
        except InvalidJSON:
            value = None
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    del value
    # A list of empty objects costs Python 64 bytes for three; the bound only has to exclude growth beyond linear.
    assert peak < 64 * FRAME


def test_hostile_documents_of_full_size_take_seconds_of_processor_time_at_most() -> None:
    """The kernel ends the child when it has used 20 s of processor; quadratic time would need minutes for one case."""
    program = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (20, 20))\n"
        "import pickle\n"
        "from orbit.protocol import strict_json\n"
        "from orbit.protocol.errors import InvalidJSON\n"
        "for name, data in pickle.load(sys.stdin.buffer).items():\n"
        "    try:\n"
        "        strict_json.canonical(strict_json.parse(data, max_bytes=len(data)))\n"
        "    except InvalidJSON:\n"
        "        pass\n"
        "    print(name, flush=True)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps(HOSTILE), capture_output=True, timeout=110, check=False
    )
    assert done.stdout.decode().splitlines() == list(HOSTILE), done.stderr.decode()[-500:]
    assert done.returncode == 0

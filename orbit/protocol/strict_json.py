"""Strict JSON in, canonical JSON out; numbers keep the text they were written with.

RFC 8259, and stricter where the worker contract is ("Schema and runtime"): UTF-8 only and no byte order mark, no
duplicate keys (compared after unescaping), no lone surrogates, no NaN or Infinity, bounded size and nesting. The parser
is the standard library's; what it lets through is checked round it, each check one pass in C, so that time and memory
stay proportional to the size whatever the bytes are. A number becomes `Number` (`msgspec.Raw`): its exact text, never a
float, never subject to Python's limit on integer digits.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Never, TypeAlias

import msgspec

from orbit.protocol.errors import InvalidJSON, InvalidValue

if TYPE_CHECKING:
    from orbit.protocol.limits import Limits

Number: TypeAlias = msgspec.Raw
"""A number's exact text: `bytes(number).decode()`."""

Value: TypeAlias = "dict[str, Value] | list[Value] | str | bool | int | Number | None"
"""A JSON value. `parse` never yields an int; `canonical` takes one, so that code may write plain counts."""

# The closing quote is optional and every quantifier possessive: without both, a document of `"\"\"\"…` costs
# quadratic time. Up to the first syntax error these read strings exactly as the parser does; after it the
# document is refused anyway.
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?'
_STRINGS: Final = re.compile(_STRING, re.DOTALL)
_TOKENS: Final = re.compile(rb"(?P<key>" + _STRING + rb"(?=[ \t\r\n]*+:))|" + _STRING + rb"|[\[\]{}]", re.DOTALL)
# Python before 3.11.5 goes on from where a possessive group failed, not from where it began (cpython issue 106052), so
# no group that may fail half-way is repeated possessively.
_CONSTANTS: Final = re.compile(_STRING + rb"|(?P<constant>NaN|-?Infinity)", re.DOTALL)
# One escape that is whole: a pair of surrogates is one, half of a pair is none.
_ESCAPE: Final = re.compile(rb"\\(?:[^u]|u(?:[^dD]|[dD](?:[0-7]|[89abAB]..\\u[dD][c-fC-F])))", re.DOTALL)
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_STEP: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_COMMA: Final = re.compile(r",[ \t\r\n]*+")
_PLAIN_INTEGER: Final = re.compile(rb"0|-?[1-9][0-9]*+")
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

# The parser's messages, as fixed phrases: an unknown one might quote the document.
_REASONS: Final = {
    "Expecting value": "a value is missing",
    "Expecting property name enclosed in double quotes": "a member name is missing",
    "Expecting ':' delimiter": "a colon is missing",
    "Expecting ',' delimiter": "a comma or a closing bracket is missing",
    "Illegal trailing comma before end of array": "a value is missing",
    "Illegal trailing comma before end of object": "a member name is missing",
    "Unterminated string starting at": "a string does not end",
    "Invalid control character at": "a control character in a string",
    "Invalid \\escape": "an unknown escape",
    "Invalid \\uXXXX escape": "an unknown escape",
    "Extra data": "text after the value",
}


class _DuplicateKeyError(Exception):
    """Two members of one object have the same name."""


class _NotFiniteError(Exception):
    """NaN, Infinity or -Infinity."""


def _object(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _DuplicateKeyError
    return members


def _not_finite(_: str) -> Never:
    raise _NotFiniteError


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=Number, parse_float=Number, parse_constant=_not_finite
)
_ENCODER: Final = msgspec.json.Encoder(order="sorted")


def parse(data: bytes, *, max_bytes: int, max_depth: int = 32) -> Value:
    """Read one JSON document of at most `max_bytes`, its arrays and objects nested at most `max_depth` deep.

    A scalar has depth 0. Raise InvalidJSON with the byte offset and a fixed reason; neither the exception nor its chain
    holds the document. `max_depth` must stay far below Python's recursion limit.
    """
    if len(data) > max_bytes:
        raise InvalidJSON(max_bytes, "larger than the limit")
    if data.startswith(_BYTE_ORDER_MARK):
        raise InvalidJSON(0, "a byte order mark")
    # Errors of the standard library carry the document, so no InvalidJSON is raised while one is being handled:
    # `from None` hides __context__ from tracebacks but keeps it.
    failure: tuple[int, str]
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        failure = error.start, "not UTF-8"
    else:
        _check_depth(data, max_depth)
        try:
            value: Value = _DECODER.decode(text)
        except json.JSONDecodeError as error:
            failure = _syntax_offset(text, error), _REASONS.get(error.msg, "not JSON")
        except _DuplicateKeyError:
            failure = _duplicate_offset(data), "a member name occurs twice in an object"
        except _NotFiniteError:
            failure = _constant_offset(data), "a number that is not finite"
        else:
            _check_surrogates(data)
            return value
    raise InvalidJSON(*failure)


def canonical(value: Value) -> bytes:
    """Write `value` in its one canonical form.

    UTF-8, keys sorted by code point, no blanks, the shortest escapes, numbers as they were written, no Unicode
    normalisation. A `msgspec.Raw` is spliced in verbatim and must itself be JSON. Raise InvalidJSON for a lone
    surrogate; its offset is 0, since there is no document to count in.
    """
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        pass  # It carries the string; see parse().
    raise InvalidJSON(0, "half of a surrogate pair")


def as_int(value: object, path: str, minimum: int, maximum: int) -> int:
    """Return the integer that a number of `parse` spells in plain digits; `1.0`, `1e2` and `-0` are refused.

    An int, which only code can have put there, is taken as well, so that senders check their bodies with the same
    parsers. Raise InvalidValue when `value` is anything else or lies outside `minimum` to `maximum`.
    """
    number: int | None = None
    # 20 characters hold every 64-bit integer; longer text never reaches int(), whose time is not linear.
    if isinstance(value, Number) and len(text := bytes(value)) <= 20 and _PLAIN_INTEGER.fullmatch(text):
        number = int(text)
    elif isinstance(value, int) and not isinstance(value, bool):
        number = value
    if number is None or not minimum <= number <= maximum:
        raise InvalidValue(path, f"must be an integer from {minimum} to {maximum}")
    return number


def number_bounds(value: Value, limits: Limits, path: str = "value") -> None:
    """Check every number in `value` against the server's bounds on payloads and results.

    At most `limits.number_digits` digits before the exponent, and a written exponent within plus or minus
    `limits.number_exponent`. Raise InvalidValue(path); members are not named, their names belong to the caller's user.
    """
    for leaf in _leaves(value):
        mantissa, _, exponent = bytes(leaf).lower().partition(b"e")
        digits = len(mantissa) - mantissa.count(b"-") - mantissa.count(b".")
        if digits > limits.number_digits:
            raise InvalidValue(path, f"holds a number of more than {limits.number_digits} digits")
        power = exponent.lstrip(b"+-").lstrip(b"0") or b"0"
        if len(power) > len(str(limits.number_exponent)) or int(power) > limits.number_exponent:
            raise InvalidValue(path, f"holds a number with an exponent beyond {limits.number_exponent}")


def depth(value: Value) -> int:
    """Return how deep arrays and objects nest in `value`: 0 for a scalar, 1 for an empty array."""
    deepest = 0
    level: list[Any] = [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        deepest += 1
        level = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]
    return deepest


def _leaves(value: Value) -> list[Number]:
    """Return all numbers in `value`, without recursion."""
    found: list[Number] = []
    waiting: list[Value] = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Number):
            found.append(item)
        elif isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
    return found


def _check_depth(data: bytes, max_depth: int) -> None:
    """Raise InvalidJSON where nesting first passes `max_depth`, before a recursive parser sees the document."""
    if data.count(b"[") + data.count(b"{") <= max_depth:
        return
    brackets = _STRINGS.sub(b"", data).translate(None, _NOT_BRACKETS)
    if max(accumulate(map(_STEP.__getitem__, brackets)), default=0) <= max_depth:
        return
    level = 0
    for token in _TOKENS.finditer(data):
        level += _STEP.get(data[token.start()], 0)
        if level > max_depth:
            raise InvalidJSON(token.start(), f"nested more than {max_depth} levels deep")


def _check_surrogates(data: bytes) -> None:
    """Raise InvalidJSON at the first escape of half a surrogate pair in `data`, a document that has been parsed."""
    if b"\\ud" not in data and b"\\uD" not in data:
        return
    if b"\\" not in _ESCAPE.sub(b"", data):
        return
    position = data.find(b"\\")
    while whole := _ESCAPE.match(data, position):
        position = data.find(b"\\", whole.end())
    raise InvalidJSON(position, "half of a surrogate pair")


def _constant_offset(data: bytes) -> int:
    """Return where NaN, Infinity or -Infinity first stands outside strings, where the parser met it."""
    for token in _CONSTANTS.finditer(data):
        if token["constant"] is not None:
            return token.start()
    raise AssertionError("the parser saw a number that is not finite")


def _syntax_offset(text: str, error: json.JSONDecodeError) -> int:
    """Return the byte offset of a syntax error: where the parser met what it could not use."""
    position = error.pos
    # From Python 3.13 on this one error points at the comma; before, and here, at what follows it.
    if error.msg.startswith("Illegal trailing comma") and (comma := _COMMA.match(text, position)):
        position = comma.end()
    return len(text[:position].encode())


def _duplicate_offset(data: bytes) -> int:
    """Return the offset of the first repeated member name; the parser does not say where it met it."""
    open_objects: list[set[str]] = []
    for token in _TOKENS.finditer(data):
        first = data[token.start()]
        if first in b"{[":
            open_objects.append(set())
        elif first in b"}]":
            open_objects.pop()
        elif token["key"] is not None:
            name = json.loads(token["key"])
            if name in open_objects[-1]:
                return token.start()
            open_objects[-1].add(name)
    raise AssertionError("the parser saw a repeated member name")

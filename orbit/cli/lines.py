"""What a command prints: one line an object, as names and values or as JSON.

The members are those of the HTTP interface, under their names. Documents - payloads, results, evidence - are left out
unless they are asked for. A text with blanks, quotes or signs that a terminal would obey is written as a JSON string, a
document as canonical JSON, so that a line stays a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from typing import Final, TypeAlias

import msgspec

from orbit.protocol import strict_json

Members: TypeAlias = dict[str, msgspec.Raw]

DOCUMENTS: Final = frozenset({"payload", "result", "evidence"})
_PLAIN: Final = re.compile(r'[^\s"=\\{\[][^\s"=\\]*')
_ANY_SIZE: Final = 1 << 31


def members(value: msgspec.Struct | msgspec.Raw) -> Members:
    """The members of an object as the platform sent them, each as JSON text."""
    return msgspec.json.decode(msgspec.json.encode(value), type=Members)


def shown(given: Members, *, first: Iterable[str] = (), documents: Collection[str] = ()) -> Members:
    """Put the members named in `first` in front, and leave out documents that are not asked for."""
    ordered = {name: given[name] for name in first if name in given} | given
    return {name: value for name, value in ordered.items() if name not in DOCUMENTS or name in documents}


def line(given: Members, *, as_json: bool) -> str:
    """Write one line."""
    if as_json:
        return _printable(strict_json.canonical({name: _value(raw) for name, raw in given.items()}).decode())
    return " ".join(f"{name}={_text(raw)}" for name, raw in given.items())


def word(text: str) -> msgspec.Raw:
    """A text as a member."""
    return msgspec.Raw(json.dumps(text).encode())


def _value(raw: msgspec.Raw) -> strict_json.Value:
    return strict_json.parse(bytes(raw), max_bytes=_ANY_SIZE)


def _text(raw: msgspec.Raw) -> str:
    value = _value(raw)
    if isinstance(value, str) and value.isprintable() and _PLAIN.fullmatch(value):
        return value
    return _printable(strict_json.canonical(value).decode())


def _printable(text: str) -> str:
    """Escape what is no sign that can be seen; inside JSON such signs can only be in strings."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else json.dumps(sign)[1:-1] for sign in text)

"""What a statement does to the transaction, judged by its text alone.

Only enough of MySQL's lexer is here to be right about the first words of each statement: comments (`-- `, `#`,
`/* */`), executable comments (`/*! */`, with a version), quoted strings, and `;`. Sources: MySQL Reference Manual,
"Comments", "String Literals", "Statements That Cause an Implicit Commit".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Effect(Enum):
    """What a statement's own text promises about the transaction it runs in."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    RESTART = "restart"
    """Commits what is open and leaves SERVER_STATUS_IN_TRANS set: BEGIN, START TRANSACTION, LOCK TABLES [M]."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements of one text: one name for a journal, and one effect for each statement."""

    name: str
    effects: tuple[Effect, ...]


# The version of an executable comment has six digits only when a blank follows them; tried on MySQL 9.7.
_TOKEN: Final = re.compile(
    rb"""
      (?P<comment> \#[^\n]*+ | --(?=[\x00-\x20]|\Z)[^\n]*+ )
    | (?P<opener> /\*! (?P<version>[0-9]{6}(?=[\t-\r\x20])|[0-9]{5})? )
    | (?P<block> /\*(?!!)(?:.*?\*/|.*\Z) )
    | (?P<string> '(?:[^'\\]++|\\.|'')*+(?:'|\Z) | "(?:[^"\\]++|\\.|"")*+(?:"|\Z) )
    | (?P<identifier> `(?:[^`]++|``)*+(?:`|\Z) )
    | (?P<closer> \*/ )
    | (?P<end> ; )
    """,
    re.VERBOSE | re.DOTALL,
)
# The same with NO_BACKSLASH_ESCAPES: a backslash in a string is an ordinary character.
_TOKEN_PLAIN_BACKSLASH: Final = re.compile(
    _TOKEN.pattern.replace(rb"[^'\\]++|\\.|''", rb"[^']++|''").replace(rb'[^"\\]++|\\.|""', rb'[^"]++|""'),
    re.VERBOSE | re.DOTALL,
)
# A skipped executable comment may hold one level of plain comments. Not possessive: before Python 3.11.5 a possessive
# group that fails half-way is not taken back (cpython issue 106052), and what follows it here always matches.
_SKIPPED: Final = re.compile(rb"(?:/\*.*?\*/|(?!\*/).)*(?:\*/|\Z)", re.DOTALL)

_BLANKS: Final = b"\x00\t\n\x0b\x0c\r "
_WORD_END: Final = r"(?![A-Za-z0-9_$\x80-\xff])"
_FORMS: Final = tuple(
    (re.compile(pattern + _WORD_END, re.IGNORECASE), name, effect)
    for pattern, name, effect in (
        (r"COMMIT", "COMMIT", Effect.COMMIT),
        (r"ROLLBACK(?:\s+WORK)?\s+TO", "ROLLBACK TO", Effect.OTHER),
        (r"ROLLBACK", "ROLLBACK", Effect.ROLLBACK),
        (r"BEGIN", "BEGIN", Effect.RESTART),
        (r"START\s+TRANSACTION", "BEGIN", Effect.RESTART),
        (r"LOCK\s+TABLES?", "LOCK TABLES", Effect.RESTART),
    )
)
_NAMES: Final = frozenset(
    {
        "ALTER",
        "ANALYZE",
        "CALL",
        "CREATE",
        "DELETE",
        "DESCRIBE",
        "DO",
        "DROP",
        "EXECUTE",
        "EXPLAIN",
        "FLUSH",
        "GRANT",
        "HANDLER",
        "INSERT",
        "KILL",
        "LOAD",
        "OPTIMIZE",
        "PREPARE",
        "RELEASE",
        "RENAME",
        "REPLACE",
        "REVOKE",
        "SAVEPOINT",
        "SELECT",
        "SET",
        "SHOW",
        "TRUNCATE",
        "UNLOCK",
        "UPDATE",
        "USE",
        "WITH",
        "XA",
    }
)
_FIRST_WORD: Final = re.compile(r"[A-Za-z]+")


def read(text: bytes, *, server_version: int, backslash_escapes: bool = True) -> Statements:
    """Say what a COM_QUERY text is.

    `server_version` is MySQL's own number (90704 for 9.7.4): an executable comment of a later version is skipped.
    `name` is one of a closed set of keywords, `MULTI` for several statements, `EMPTY` for none and `OTHER` for the
    rest; it never holds anything else of the text.
    """
    found = [_judge(code) for code in _split(text, server_version=server_version, backslash_escapes=backslash_escapes)]
    if not found:
        return Statements("EMPTY", (Effect.OTHER,))
    name = found[0][0] if len(found) == 1 else "MULTI"
    return Statements(name, tuple(effect for _, effect in found))


def _split(text: bytes, *, server_version: int, backslash_escapes: bool) -> list[str]:
    """The code of each statement that is not empty: comments are blanks, strings are `''`."""
    token = _TOKEN if backslash_escapes else _TOKEN_PLAIN_BACKSLASH
    statements: list[list[bytes]] = [[]]
    at = 0
    inside = False
    while match := token.search(text, at):
        code, kind = text[at : match.start()], match.lastgroup
        at = match.end()
        statements[-1].append(code)
        if match["opener"] is not None:
            if match["version"] is None or int(match["version"]) <= server_version:
                inside = True
            else:
                skipped = _SKIPPED.match(text, at)
                at = skipped.end() if skipped else len(text)
            statements[-1].append(b" ")
        elif kind == "end":
            statements.append([])
        elif kind in {"string", "identifier"}:
            statements[-1].append(b"''")
        elif kind == "closer" and not inside:
            statements[-1].append(b"*/")
        else:
            inside = inside and kind != "closer"
            statements[-1].append(b" ")
    statements[-1].append(text[at:])
    codes = (b"".join(parts).strip(_BLANKS).decode("latin-1") for parts in statements)
    return [code for code in codes if code]


def _judge(code: str) -> tuple[str, Effect]:
    for pattern, name, effect in _FORMS:
        if pattern.match(code):
            return name, effect
    word = _FIRST_WORD.match(code)
    name = word[0].upper() if word else ""
    return (name if name in _NAMES else "OTHER"), Effect.OTHER

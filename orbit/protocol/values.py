"""Scalar values of the wire: identifiers, decimal counters, UTC times, names and secrets.

Each parser takes an untrusted value and the path it came from, returns the value in its one accepted form, and raises
`InvalidValue(path, reason)` otherwise. Sources: seed worker-contract ("fields and compatibility"), result-inbox 4.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from datetime import UTC, datetime
from typing import Final, final

from orbit.protocol.errors import InvalidValue

_ID: Final = re.compile(r"[0-9a-f]{32}")
_COUNTER: Final = re.compile(r"[1-9][0-9]{0,19}")
_SECRET: Final = re.compile(r"[A-Za-z0-9_-]{43}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
KEY_PATTERN: Final = "[!-~]{1,128}"
"""What a key that a user chose looks like, as a regular expression for the whole of it."""
_KEY: Final = re.compile(KEY_PATTERN)
_TIME: Final = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,6}))?Z")

COUNTER_MAX: Final = 2**64 - 1
COUNT_MAX: Final = 2**31 - 1
"""The most that a JSON integer of the wire may be; what may grow larger is a counter."""
# The last of a secret's 43 base64url characters carries four bits; its two low bits must be zero to be canonical.
_SECRET_LAST: Final = frozenset("AEIMQUYcgkosw048")


def new_id() -> str:
    """A fresh random identifier: 32 lowercase hexadecimal digits."""
    return secrets.token_hex(16)


def parse_id(value: object, path: str) -> str:
    """An identifier: exactly 32 lowercase hexadecimal digits."""
    if not isinstance(value, str) or _ID.fullmatch(value) is None:
        raise InvalidValue(path, "must be 32 lowercase hexadecimal digits")
    return value


def parse_counter(value: object, path: str) -> int:
    """A counter (epoch, sequence, version): a canonical decimal string of 1 to 2^64-1."""
    if not isinstance(value, str) or _COUNTER.fullmatch(value) is None or int(value) > COUNTER_MAX:
        raise InvalidValue(path, "must be a decimal string from 1 to 18446744073709551615")
    return int(value)


def parse_name(value: object, path: str, *, max_length: int = 64) -> str:
    """A name: ASCII, starts alphanumeric, then also dot, underscore and hyphen."""
    if not isinstance(value, str) or not 1 <= len(value) <= max_length or _NAME.fullmatch(value) is None:
        raise InvalidValue(
            path,
            f"must be 1 to {max_length} ASCII letters, digits, dots, underscores or hyphens, the first alphanumeric",
        )
    return value


def parse_key(value: object, path: str) -> str:
    """A key that a user chose: 1 to 128 visible ASCII characters."""
    if not isinstance(value, str) or _KEY.fullmatch(value) is None:
        raise InvalidValue(path, "must be 1 to 128 visible ASCII characters")
    return value


def parse_time(value: object, path: str) -> datetime:
    """A UTC time in RFC 3339 form with `Z` and at most six fraction digits; the date must exist."""
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InvalidValue(path, "must be a UTC time such as 2026-01-31T08:15:30.25Z")
    try:
        moment = datetime.strptime(match[1], "%Y-%m-%dT%H:%M:%S")  # noqa: DTZ007 - the pattern demands Z
    except ValueError:
        raise InvalidValue(path, "is not a date and time that exists") from None
    fraction = int((match[2] or "").ljust(6, "0"))
    return moment.replace(microsecond=fraction, tzinfo=UTC)


def format_time(moment: datetime) -> str:
    """The one text form of a time: UTC, `Z`, no trailing zeros in the fraction.

    A naive value is taken as UTC, which is what MySQL's DATETIME columns of this project hold.
    """
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    text = moment.strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
    fraction = f"{moment.microsecond:06d}".rstrip("0")
    return f"{text}.{fraction}Z" if fraction else f"{text}Z"


@final
class Secret:
    """32 random bytes as 43 characters of unpadded base64url, hidden from repr, str, format and pickling.

    `reveal()` is the only way to the text; call it where bytes go on the wire and nowhere else.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    @classmethod
    def new(cls) -> Secret:
        """A fresh secret from the operating system's generator."""
        return cls(secrets.token_urlsafe(32))

    @classmethod
    def parse(cls, value: object, path: str) -> Secret:
        """The secret in `value`, or InvalidValue when its length, alphabet or last character is not canonical."""
        if not isinstance(value, str) or _SECRET.fullmatch(value) is None or value[-1] not in _SECRET_LAST:
            raise InvalidValue(path, "must be 43 characters of unpadded base64url")
        return cls(value)

    def reveal(self) -> str:
        """The text itself, for the wire."""
        return self._text

    def digest(self) -> str:
        """SHA-256 in hexadecimal: what a database keeps instead of the secret (32 random bytes need no salt)."""
        return hashlib.sha256(self._text.encode()).hexdigest()

    def matches(self, digest: str) -> bool:
        """Whether `digest` was made of this secret; compares in constant time."""
        return hmac.compare_digest(self.digest(), digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._text, other._text)

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "Secret(…)"

    __str__ = __repr__

    def __reduce__(self) -> str:
        raise TypeError("a Secret is not pickled")

"""Put the proxy's address in the place of a DSN's, touching nothing else of its text."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl

_FORM: Final = re.compile(
    r"mysql://(?P<user>(?:[^/?#]*@)?)(?P<hosts>[^/?#@]+)(?P<path>/[^?#]*)?(?P<query>\?[^#]*)?", re.ASCII
)
_HOST: Final = re.compile(r"(?P<name>\[[^\]]+\]|[^\[\]:]+)(?::(?P<port>[0-9]{1,5}))?")
_DEFAULT_PORT: Final = 3306


class InvalidDSN(ValueError):
    """The text cannot be used; the message says why and never holds a part of it."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a DSN points, and the DSN around it."""

    host: str
    port: int
    _before: str = field(repr=False)
    _after: str = field(repr=False)

    def through(self, host: str, port: int) -> str:
        """The DSN with another address. Several hosts become this one."""
        return f"{self._before}{host}:{port}{self._after}"


def read_dsn(text: str) -> Target:
    """Find the (first) address of `mysql://user:password@host:port[,host:port…]/database`.

    Raises InvalidDSN, also for a DSN that asks for TLS: the proxy speaks plain text only.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise InvalidDSN("it is not of the form mysql://user:password@host:port/database")
    query = match["query"] or ""
    options = parse_qsl(query.removeprefix("?"), keep_blank_values=True)
    if any(name.startswith("ssl") and (name, value.upper()) != ("ssl_mode", "DISABLED") for name, value in options):
        raise InvalidDSN("it asks for TLS, and the fault proxy speaks plain text only")
    address = _HOST.fullmatch(match["hosts"].split(",")[0])
    if address is None:
        raise InvalidDSN("its host is not of the form host:port")
    port = int(address["port"] or _DEFAULT_PORT)
    if not 1 <= port <= 65535:
        raise InvalidDSN("its port is not from 1 to 65535")
    return Target(address["name"].strip("[]"), port, f"mysql://{match['user']}", (match["path"] or "") + query)

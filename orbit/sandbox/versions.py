"""Which server answers: MySQL or MariaDB, and which version. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

MINIMUM = (8, 4)
_NUMBER = re.compile(r"(?<![\w.])(\d{1,3})\.(\d{1,3})\.(\d{1,3})")
_PROGRAM = re.compile(r"\bVer\s+(\S+)")


@dataclass(frozen=True, slots=True)
class ServerVersion:
    """A server's own words about itself, taken apart."""

    text: str
    number: tuple[int, int, int]
    mariadb: bool

    def refusal(self) -> str | None:
        """Why the sandbox does not run on this server, as a clause; None when it does."""
        if self.mariadb:
            return f"it is MariaDB {self.text}, which is not MySQL: MySQL {_dotted(MINIMUM)} or newer is needed"
        if self.number[:2] < MINIMUM:
            return f"it is MySQL {self.text}, and {_dotted(MINIMUM)} or newer is needed"
        return None


def parse_version(text: str) -> ServerVersion:
    """Read the answer of `SELECT VERSION()`; ValueError when it holds no version.

    MariaDB puts its name into the text, and in a greeting a `5.5.5-` before it.
    """
    mariadb = "mariadb" in text.lower()
    found = _NUMBER.search(text.removeprefix("5.5.5-") if mariadb else text)
    if found is None:
        raise ValueError(f"no version number in {text[:80]!r}")
    major, minor, patch = (int(part) for part in found.groups())
    return ServerVersion(text, (major, minor, patch), mariadb)


def parse_program_version(output: str) -> ServerVersion:
    """Read the output of `mysqld --version`; ValueError when it holds no version.

    MySQL says `mysqld  Ver 8.4.3 for Linux on x86_64 (MySQL Community Server - GPL)`, MariaDB
    `mysqld  Ver 10.11.6-MariaDB-0+deb12u1 for debian-linux-gnu on x86_64 (Debian 12)`.
    """
    found = _PROGRAM.search(output)
    if found is None:
        raise ValueError(f"no `Ver` in {output[:80]!r}")
    return parse_version(found.group(1))


def _dotted(number: tuple[int, ...]) -> str:
    return ".".join(map(str, number))

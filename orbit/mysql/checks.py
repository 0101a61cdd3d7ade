"""Is this a server that keeps what it confirmed? Read its settings, then judge them without it.

`CommitUnconfirmed` is settled by looking whether a committed row is there, and a commit that was confirmed must survive
a crash. Both hold only on MySQL itself and only with the settings named here; each is MySQL 8.4's default.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orbit.mysql.statement import Statement

if TYPE_CHECKING:
    from orbit.mysql.transaction import Transaction

_MIB: Final = 1024 * 1024
_STRICT: Final = frozenset({"STRICT_TRANS_TABLES", "STRICT_ALL_TABLES"})


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is not as it must be: its name, what was found, what is needed."""

    variable: str
    found: str
    needed: str

    def __str__(self) -> str:
        return f"{self.variable} is {self.found}, needed: {self.needed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What a server says about itself. Sizes in bytes; `sql_mode` is the server's own, not that of a lane."""

    version: str
    version_comment: str
    sql_mode: frozenset[str]
    innodb_flush_log_at_trx_commit: int
    log_bin: bool
    sync_binlog: int
    binlog_error_action: str
    max_allowed_packet: int
    read_only: bool
    super_read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """What a program asks of its server."""

    version: tuple[int, int] = (8, 4)
    max_allowed_packet: int = 4 * _MIB
    """An event of 512 KiB may double when it is written as a literal, and shares its statement with other columns."""
    takes_writes: bool = True


_FACTS: Final = Statement(
    "SELECT @@GLOBAL.version, @@GLOBAL.version_comment, @@GLOBAL.sql_mode, @@GLOBAL.innodb_flush_log_at_trx_commit,"
    " @@GLOBAL.log_bin, @@GLOBAL.sync_binlog, @@GLOBAL.binlog_error_action, @@GLOBAL.max_allowed_packet,"
    " @@GLOBAL.read_only, @@GLOBAL.super_read_only"
)


async def read_facts(transaction: Transaction) -> ServerFacts:
    """Read the settings in one round trip; any account may. Raises StatementFailed."""
    row = await transaction.fetch_one(_FACTS)
    assert row is not None
    return ServerFacts(
        version=row[0],
        version_comment=row[1],
        sql_mode=frozenset(mode for mode in row[2].split(",") if mode),
        innodb_flush_log_at_trx_commit=row[3],
        log_bin=bool(row[4]),
        sync_binlog=row[5],
        binlog_error_action=row[6],
        max_allowed_packet=row[7],
        read_only=bool(row[8]),
        super_read_only=bool(row[9]),
    )


def judge(facts: ServerFacts, requirements: Requirements) -> list[Problem]:
    """Name every setting that does not meet the requirements; pure."""
    problems = [*_product(facts, requirements)]
    if not facts.sql_mode & _STRICT:
        # Lanes set a strict mode of their own; migrations and whoever repairs rows by hand do not.
        problems.append(Problem("sql_mode", ",".join(sorted(facts.sql_mode)) or "empty", "STRICT_TRANS_TABLES in it"))
    if facts.innodb_flush_log_at_trx_commit != 1:
        found = str(facts.innodb_flush_log_at_trx_commit)
        problems.append(Problem("innodb_flush_log_at_trx_commit", found, "1"))
    if facts.log_bin and facts.sync_binlog != 1:
        problems.append(Problem("sync_binlog", str(facts.sync_binlog), "1"))
    if facts.log_bin and facts.binlog_error_action != "ABORT_SERVER":
        problems.append(Problem("binlog_error_action", facts.binlog_error_action, "ABORT_SERVER"))
    if facts.max_allowed_packet < requirements.max_allowed_packet:
        needed = f"at least {requirements.max_allowed_packet}"
        problems.append(Problem("max_allowed_packet", str(facts.max_allowed_packet), needed))
    if requirements.takes_writes:
        if facts.super_read_only:
            problems.append(Problem("super_read_only", "ON", "OFF"))
        elif facts.read_only:
            problems.append(Problem("read_only", "ON", "OFF"))
    return problems


def _product(facts: ServerFacts, requirements: Requirements) -> list[Problem]:
    needed = ".".join(str(part) for part in requirements.version)
    if "mariadb" in f"{facts.version} {facts.version_comment}".lower():
        return [Problem("version", facts.version, f"MySQL {needed} or newer; MariaDB is another product")]
    numbers = re.match(r"(\d+)\.(\d+)", facts.version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < requirements.version:
        return [Problem("version", facts.version, f"MySQL {needed} or newer")]
    return []

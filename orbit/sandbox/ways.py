"""Which of the four ways to a real MySQL to try, and in which order. Pure (design section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

DSN_VARIABLE = "ORBIT_SANDBOX_MYSQL_DSN"


class Way(Enum):
    """The four ways, in the order they are tried; the value is how messages name each."""

    ENVIRONMENT = f"way 1, the server of {DSN_VARIABLE}"
    DOCKER = "way 2, a container by the Docker engine"
    PATH = "way 3, the mysqld on PATH"
    DEBIAN = "way 4, Debian's mysql-server-core downloaded by apt"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a look at one way found: usable or not, and the clause that says why."""

    usable: bool
    says: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The ways to try, in order, and why the others are out."""

    candidates: tuple[Way, ...]
    refused: Mapping[Way, str]


def plan(findings: Mapping[Way, Finding]) -> Plan:
    """Order the usable ways.

    A DSN in the environment is an explicit choice: it is the only candidate, so that a typing error in it can never
    quietly run tests against another server.
    """
    if Way.ENVIRONMENT in findings and findings[Way.ENVIRONMENT].usable:
        return Plan((Way.ENVIRONMENT,), {})
    return Plan(
        tuple(way for way in Way if way in findings and findings[way].usable),
        {way: finding.says for way, finding in findings.items() if not finding.usable},
    )


def report(said: Mapping[Way, str]) -> str:
    """The error for somebody on a machine where no way works: each way and what it said."""
    lines = [f"  {way.value}: {said[way]}" for way in Way if way in said]
    return "no way to a real MySQL worked\n" + "\n".join(lines)

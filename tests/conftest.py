"""Fixtures for every test that needs a real MySQL. They fail where no way to one works; nothing is skipped."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from orbit.sandbox import PLATFORM_PRIVILEGES, MySQLServer, mysql_server
from tests.support.mysql import ReceiverDSNs, receiver_accounts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orbit.mysql.dsn import DSN

# The fixtures node, credentials and api; runs.
pytest_plugins = ("tests.support.platform", "tests.support.sandbox_runs")

_WAY = pytest.StashKey[str]()

# The same examples in every run, and no verdict about the machine's speed.
hypothesis.settings.register_profile(
    "suite",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("suite")


@pytest.fixture(scope="session")
def mysql(pytestconfig: pytest.Config) -> Iterator[MySQLServer]:
    """One MySQL server for the whole session. Tests never stop it; see `own_mysql`."""
    with mysql_server(os.environ) as server:
        pytestconfig.stash[_WAY] = server.way
        yield server


@pytest.fixture
def own_mysql() -> Iterator[MySQLServer]:
    """A server of this test's own, to be killed, paused and restarted through `.control`."""
    with mysql_server(os.environ, own=True) as server:
        yield server


@pytest.fixture
def receiver_dsns(mysql: MySQLServer) -> Iterator[ReceiverDSNs]:
    """A fresh, empty receiver database with its accounts."""
    database = mysql.create_database("receiver")
    yield receiver_accounts(mysql, database)
    mysql.drop_database(database)


@pytest.fixture(scope="session")
def platform_dsn(mysql: MySQLServer) -> Iterator[DSN]:
    """One migrated platform database for the session; tests keep apart by bootstrapping names of their own."""
    from orbit.server.migrate import migrate  # noqa: PLC0415 - most tests need no platform

    database = mysql.create_database("platform")
    dsn = mysql.create_account(database, PLATFORM_PRIVILEGES)
    migrate(dsn)
    yield dsn
    mysql.drop_database(database)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker of xdist: tell the process that writes the summary."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["mysql"] = session.config.stash.get(_WAY, None)


@pytest.hookimpl(optionalhook=True)  # xdist's; without it there are no nodes
def pytest_testnodedown(node: Any) -> None:
    """Keep what a worker told; one that crashed told nothing."""
    if (way := getattr(node, "workeroutput", {}).get("mysql")) is not None:
        node.config.stash[_WAY] = way


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which MySQL the tests ran on; every worker has its own, got the same way."""
    if _WAY in config.stash:
        terminalreporter.write_line(f"MySQL by {config.stash[_WAY]}")

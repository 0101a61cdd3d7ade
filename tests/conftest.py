"""Fixtures for every test that needs a real MySQL. They fail where no way to one works; nothing is skipped."""

from __future__ import annotations

import importlib
import inspect
import os
from typing import TYPE_CHECKING, NamedTuple

import pytest

from orbit.sandbox import (
    PLATFORM_PRIVILEGES,
    RECEIVER_INIT_PRIVILEGES,
    RECEIVER_RUN_PRIVILEGES,
    MySQLServer,
    mysql_server,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from orbit.mysql.dsn import DSN

_SERVER = pytest.StashKey[str]()


class ReceiverDSNs(NamedTuple):
    """Three accounts of one fresh, empty receiver database."""

    init: DSN
    run: DSN
    admin: DSN


@pytest.fixture(scope="session")
def mysql(pytestconfig: pytest.Config) -> Iterator[MySQLServer]:
    """One MySQL server for the whole session; tests must not stop it (see `own_mysql`)."""
    with mysql_server(os.environ) as server:
        pytestconfig.stash[_SERVER] = server.way
        yield server


@pytest.fixture
def receiver_dsns(mysql: MySQLServer) -> Iterator[ReceiverDSNs]:
    """A fresh, empty database: an account with CREATE, one with SELECT, INSERT, UPDATE, and the administrator."""
    database = mysql.create_database("receiver")
    yield ReceiverDSNs(
        init=mysql.create_account(database, RECEIVER_INIT_PRIVILEGES),
        run=mysql.create_account(database, RECEIVER_RUN_PRIVILEGES),
        admin=database.admin,
    )
    mysql.drop_database(database)


@pytest.fixture(scope="session")
async def platform_dsn(mysql: MySQLServer) -> AsyncIterator[DSN]:
    """One migrated platform database for the session; tests keep apart by bootstrapping names of their own."""
    database = mysql.create_database("platform")
    dsn = mysql.create_account(database, PLATFORM_PRIVILEGES)
    migrate = importlib.import_module("orbit.server.migrate").migrate
    outcome = migrate(dsn)
    if inspect.isawaitable(outcome):
        await outcome
    yield dsn
    mysql.drop_database(database)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which MySQL the tests ran on."""
    if _SERVER in config.stash:
        terminalreporter.write_line(f"MySQL: {config.stash[_SERVER]}")

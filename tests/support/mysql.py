"""Databases for tests: what the fixtures give, for a server of the test's own too."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from orbit.sandbox import RECEIVER_INIT_PRIVILEGES, RECEIVER_RUN_PRIVILEGES

if TYPE_CHECKING:
    from orbit.mysql.dsn import DSN
    from orbit.sandbox import Database, MySQLServer


WITHOUT_DOCKER = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}
"""Added to an environment, it makes the sandbox start MySQL as a process of this machine."""


class ReceiverDSNs(NamedTuple):
    """Three accounts of one receiver database."""

    init: DSN
    """CREATE alone."""
    run: DSN
    """SELECT, INSERT, UPDATE."""
    admin: DSN
    """Everything; for looking from outside."""


def receiver_accounts(server: MySQLServer, database: Database) -> ReceiverDSNs:
    """Make the receiver's two accounts in a database of this server."""
    return ReceiverDSNs(
        init=server.create_account(database, RECEIVER_INIT_PRIVILEGES),
        run=server.create_account(database, RECEIVER_RUN_PRIVILEGES),
        admin=database.admin,
    )

"""Bring a platform database to this version's schema, and refuse to serve any other.

The whole run holds MySQL's named lock (manual, 14.14 "Locking Functions") on the connection that also runs the DDL:
two administrators at once do the work once, and a run that dies lets go of it with its connection. Every revision is
one DDL statement that may be repeated, so the answer to a run that failed is another run.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Final

import pymysql
from alembic.command import upgrade
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.exc import DBAPIError

from orbit.mysql.connect import ssl_context
from orbit.mysql.dsn import DSN
from orbit.mysql.errors import NotCommitted

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from orbit.mysql.pool import LanePool
    from orbit.mysql.transaction import Transaction

CONNECT_TIMEOUT_S: Final = 10
LOCK_TIMEOUT_S: Final = 60
"""How long a run waits for another one; creating an index on a large table may take longer, and then this one fails."""
METADATA_LOCK_TIMEOUT_S: Final = 30
"""How long DDL waits for transactions on its table; everybody else on that table queues behind it meanwhile."""
READ_BUDGET_S: Final = 5.0

NO_SUCH_TABLE: Final = 1146

_CURRENT: Final = text("SELECT version_num FROM alembic_version")
_LOCK: Final = text("SELECT GET_LOCK(:name, :seconds)")


class MigrationError(Exception):
    """The schema was not brought up to date. Says what to do about it; never quotes the server's text."""


class UnknownSchema(Exception):
    """The database's schema is not the one that this version of the server knows."""


@cache
def head_revision() -> str:
    """The revision that this version of the server needs."""
    head = ScriptDirectory.from_config(alembic_config()).get_current_head()
    assert head is not None
    return head


def migrate(dsn: DSN | str, *, revision: str = "head", lock_timeout_s: int = LOCK_TIMEOUT_S) -> None:
    """Run the revisions that the database lacks, up to `revision`; running it again is always safe.

    Needs the privileges CREATE, ALTER, INDEX, and SELECT, INSERT, UPDATE, DELETE on Alembic's own table. Raises
    MigrationError when the database cannot be reached or does not obey, when another run holds the lock for longer
    than `lock_timeout_s`, or when the schema comes from a newer version.
    """
    target = DSN.parse(dsn, source="DSN") if isinstance(dsn, str) else dsn
    engine = create_engine("mysql+pymysql://", creator=lambda: _connect(target), poolclass=NullPool)
    try:
        with engine.connect() as connection:
            _lock(connection, target, lock_timeout_s)
            config = alembic_config()
            config.attributes["connection"] = connection
            upgrade(config, revision)
            connection.commit()
    except CommandError:
        # Alembic knows no way from the recorded revision to the head: it is not in this version's line.
        raise MigrationError("the database's schema comes from another version of the platform") from None
    except (DBAPIError, pymysql.MySQLError) as error:
        raise MigrationError(f"the database refused: {_describe(error)}") from None
    finally:
        engine.dispose()


async def check_schema(pool: LanePool) -> None:
    """Raise UnknownSchema unless the database's schema is this version's, older and newer ones alike.

    Raises orbit.mysql errors when the database does not answer. Safe to cancel.
    """

    async def work(tx: Transaction) -> list[str]:
        return [str(revision) for (revision,) in await tx.fetch(_CURRENT)]

    try:
        found = await pool.read(work, budget_s=READ_BUDGET_S)
    except NotCommitted as failure:
        if failure.errno != NO_SUCH_TABLE:
            raise
        found = []
    if found != [head_revision()]:
        raise UnknownSchema(
            f"the database is at schema revision {', '.join(found) or 'none'}, this server needs {head_revision()};"
            " run orbit-admin migrate of the same version"
        )


def alembic_config() -> Config:
    """Alembic's configuration: the revisions that are shipped with this package."""
    config = Config()
    config.set_main_option("script_location", str(resources.files("orbit.server") / "migrations"))
    config.set_main_option("path_separator", "os")
    return config


def _connect(dsn: DSN) -> pymysql.Connection[pymysql.cursors.Cursor]:
    """Open a connection to the first host that answers; DDL may take as long as it takes, so reads have no timeout."""
    context = ssl_context(dsn.ssl)
    for position, (host, port) in enumerate(dsn.hosts, 1):
        try:
            return pymysql.connect(
                host=host,
                port=port,
                user=dsn.user,
                password=dsn.password,
                database=dsn.database,
                charset="utf8mb4",
                ssl=context,
                connect_timeout=CONNECT_TIMEOUT_S,
                init_command=f"SET SESSION lock_wait_timeout = {METADATA_LOCK_TIMEOUT_S}",
            )
        except pymysql.OperationalError:
            if position == len(dsn.hosts):
                raise
    raise AssertionError("a DSN has at least one host")


def lock_name(dsn: DSN) -> str:
    """The name of the lock: lock names are the server's, not the database's, and hold 64 characters."""
    return f"orbit-migrate-{hashlib.sha256((dsn.database or '').encode()).hexdigest()[:32]}"


def _lock(connection: Connection, dsn: DSN, timeout_s: int) -> None:
    """Take the lock of this database's migrations; the end of the connection gives it back."""
    if connection.scalar(_LOCK, {"name": lock_name(dsn), "seconds": timeout_s}) != 1:
        raise MigrationError("another migration of this database is still running")


def _describe(error: DBAPIError | pymysql.MySQLError) -> str:
    origin = error.orig if isinstance(error, DBAPIError) else error
    errno = origin.args[0] if origin is not None and origin.args else None
    return f"{type(origin).__name__} {errno if isinstance(errno, int) else ''}".rstrip()

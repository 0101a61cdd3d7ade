"""Give an application its names and a credential, without any other credential: the administrator's first step.

Names that exist are used, so a second run adds a credential to the same names. A token is shown once; the database
keeps its digest.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import bindparam, func, insert, select

from orbit.mysql.dsn import DSN
from orbit.mysql.errors import DuplicateKey
from orbit.mysql.pool import LanePool
from orbit.mysql.statement import Statement, compile_statement
from orbit.protocol.limits import Limits
from orbit.protocol.values import Secret, new_id, parse_name
from orbit.server.migrate import check_schema
from orbit.server.services.access import Permission
from orbit.server.tables import applications, credentials, namespaces, queues

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from orbit.mysql.transaction import Transaction

_ALWAYS: Final = (Permission.TASKS_SUBMIT, Permission.TASKS_READ, Permission.TASKS_CANCEL)
_EVENTS: Final = (Permission.EVENTS_READ, Permission.EVENTS_CONSUME, Permission.EVENTS_MANAGE)
_QUEUES: Final = (Permission.QUEUES_MANAGE,)
_TASKS: Final = (Permission.TASKS_MANAGE,)
_WORKERS: Final = (Permission.WORKERS_CONNECT, Permission.WORKERS_CONSUME)


@dataclass(frozen=True, slots=True)
class _Named:
    """How a thing with a unique name is found and made."""

    find: Statement
    make: Statement


_APPLICATION: Final = _Named(
    compile_statement(select(applications.c.application_id).where(applications.c.name == bindparam("name"))),
    compile_statement(
        insert(applications).values(
            application_id=bindparam("id"), name=bindparam("name"), created_at=func.utc_timestamp(6)
        )
    ),
)
_NAMESPACE: Final = _Named(
    compile_statement(select(namespaces.c.namespace_id).where(namespaces.c.name == bindparam("name"))),
    compile_statement(
        insert(namespaces).values(
            namespace_id=bindparam("id"), name=bindparam("name"), created_at=func.utc_timestamp(6)
        )
    ),
)
_QUEUE: Final = _Named(
    compile_statement(
        select(queues.c.queue_id).where(
            queues.c.namespace_id == bindparam("namespace_id"),
            queues.c.environment == bindparam("environment"),
            queues.c.name == bindparam("name"),
        )
    ),
    compile_statement(
        insert(queues).values(
            queue_id=bindparam("id"),
            namespace_id=bindparam("namespace_id"),
            environment=bindparam("environment"),
            name=bindparam("name"),
            created_at=func.utc_timestamp(6),
        )
    ),
)
_CREDENTIAL: Final = compile_statement(
    insert(credentials).values(
        credential_id=bindparam("credential_id"),
        application_id=bindparam("application_id"),
        namespace_id=bindparam("namespace_id"),
        queue_id=bindparam("queue_id"),
        token_sha256=bindparam("token_sha256"),
        permissions=bindparam("permissions"),
        created_at=func.utc_timestamp(6),
        revoked_at=None,
    )
)


class _Raced(Exception):
    """Somebody else made a name between our look and our INSERT."""


def bootstrap(
    dsn: DSN | str,
    *,
    application: str,
    namespace: str,
    environment: str,
    queue: str,
    worker_access: bool = False,
    event_access: bool = False,
    queue_access: bool = False,
    task_access: bool = False,
) -> dict[str, Any]:
    """Make what is missing of the names, and one new credential; gives the content of a credentials file.

    Blocks; runs an event loop of its own, so call it from a thread where one is running. Raises InvalidValue for a
    name, InvalidDSN, migrate.UnknownSchema and the errors of `LanePool.run`. After CommitUnconfirmed run it again: a
    credential whose token nobody has seen is of no use to anybody.
    """
    target = DSN.parse(dsn) if isinstance(dsn, str) else dsn
    names = {
        "application": parse_name(application, "application"),
        "namespace": parse_name(namespace, "namespace"),
        "environment": parse_name(environment, "environment"),
        "queue": parse_name(queue, "queue"),
    }
    permissions = (
        *_ALWAYS,
        *(_EVENTS if event_access else ()),
        *(_WORKERS if worker_access else ()),
        *(_QUEUES if queue_access else ()),
        *(_TASKS if task_access else ()),
    )
    return asyncio.run(_bootstrap(target, names, permissions))


async def _bootstrap(dsn: DSN, names: Mapping[str, str], permissions: tuple[Permission, ...]) -> dict[str, Any]:
    token = Secret.new()

    async def work(tx: Transaction) -> str:
        application_id = await _name(tx, _APPLICATION, {"name": names["application"]})
        namespace_id = await _name(tx, _NAMESPACE, {"name": names["namespace"]})
        queue_id = await _name(
            tx,
            _QUEUE,
            {"namespace_id": namespace_id, "environment": names["environment"], "name": names["queue"]},
        )
        await tx.execute(
            _CREDENTIAL,
            {
                "credential_id": new_id(),
                "application_id": application_id,
                "namespace_id": namespace_id,
                "queue_id": queue_id,
                "token_sha256": token.digest(),
                "permissions": " ".join(permissions),
            },
        )
        return queue_id

    pool = LanePool(dsn, 1, name="bootstrap")
    try:
        await check_schema(pool)
        queue_id = await _repeat(pool, work)
    finally:
        await pool.close()
    return {**names, "queue_id": queue_id, "token": token.reveal(), "permissions": [one.value for one in permissions]}


async def _repeat(pool: LanePool, work: Callable[[Transaction], Awaitable[str]]) -> str:
    while True:
        try:
            return await pool.run_again(work, budget_s=Limits().transaction_s)
        except _Raced:
            # One of three names exists more than before, and names stay: this ends.
            continue


async def _name(tx: Transaction, named: _Named, identity: Mapping[str, str]) -> str:
    """Give the id behind a name, made now if it has none."""
    row = await tx.fetch_one(named.find, identity)
    if row is not None:
        return str(row[0])
    made = new_id()
    try:
        await tx.execute(named.make, {**identity, "id": made}, duplicate_ok=True)
    except DuplicateKey:
        raise _Raced from None
    return made

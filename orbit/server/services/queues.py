"""Show the queue that a credential is bound to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import bindparam, select

from orbit.mysql.statement import compile_statement
from orbit.protocol.http_v1 import Queue, QueuePage
from orbit.protocol.values import format_time
from orbit.server.tables import namespaces, queues

if TYPE_CHECKING:
    from typing import Any

    from orbit.mysql.transaction import Transaction
    from orbit.server.parts import Platform
    from orbit.server.services.access import Caller

_QUEUES: Final = compile_statement(
    select(queues.c.queue_id, namespaces.c.name, queues.c.environment, queues.c.name, queues.c.created_at)
    .join_from(queues, namespaces, queues.c.namespace_id == namespaces.c.namespace_id)
    .where(queues.c.queue_id == bindparam("queue_id"))
)


async def list_queues(platform: Platform, caller: Caller) -> QueuePage:
    """List the caller's queues. Safe to cancel."""

    async def work(tx: Transaction) -> list[tuple[Any, ...]]:
        return await tx.fetch(_QUEUES, {"queue_id": caller.queue_id})

    rows = await platform.pool.read(work, budget_s=platform.limits.transaction_s)
    return QueuePage(
        queues=[
            Queue(
                queue_id=queue_id,
                namespace=namespace,
                environment=environment,
                name=name,
                created_at=format_time(created_at),
            )
            for queue_id, namespace, environment, name, created_at in rows
        ]
    )

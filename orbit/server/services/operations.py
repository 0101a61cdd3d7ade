"""Do an operation once for its key, whatever the caller's network does: the inbox pattern.

The receipt is the transaction's first statement and its primary key the whole identity: namespace, application, kind
of operation and the caller's key. Whoever meets an existing receipt (1062) waited for the transaction that wrote it to
end, holding no other lock; it rolls back, reads the committed receipt and compares digests. No receipt expires.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sqlalchemy import bindparam, func, insert, select

from orbit.mysql.errors import DuplicateKey
from orbit.mysql.statement import compile_statement
from orbit.protocol.errors import ApiError, ErrorCode
from orbit.server.tables import operations

if TYPE_CHECKING:
    from orbit.mysql.transaction import Transaction
    from orbit.server.parts import Platform
    from orbit.server.services.access import Caller

_TRIES: Final = 3

_INSERT: Final = compile_statement(
    insert(operations).values(
        namespace_id=bindparam("namespace_id"),
        application_id=bindparam("application_id"),
        kind=bindparam("kind"),
        operation_key=bindparam("operation_key"),
        content_sha256=bindparam("content_sha256"),
        resource_id=bindparam("resource_id"),
        created_at=func.utc_timestamp(6),
    )
)
_RECEIPT: Final = compile_statement(
    select(operations.c.content_sha256, operations.c.resource_id).where(
        operations.c.namespace_id == bindparam("namespace_id"),
        operations.c.application_id == bindparam("application_id"),
        operations.c.kind == bindparam("kind"),
        operations.c.operation_key == bindparam("operation_key"),
    )
)


class _Seen(Exception):
    """The receipt exists already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What is to be done once. `resource_id` is what the receipt will name, should this be the first time."""

    caller: Caller
    kind: str
    key: str
    content_sha256: str
    resource_id: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """Which resource the key stands for, and whether this call made it so."""

    resource_id: str
    created: bool


async def once(platform: Platform, operation: Operation, work: Callable[[Transaction], Awaitable[None]]) -> Outcome:
    """Run `work` in the transaction that writes the receipt, or find the receipt of the first time.

    `work` may run several times (deadlocks are retried) and commits at most once. Raises ApiError
    IDEMPOTENCY_CONFLICT when the key came with other content before, what `work` raised, and the errors of
    `LanePool.run`; after CommitUnconfirmed the same call again tells what happened. Cancelling leaves the outcome to
    the next call with the same key.
    """
    caller = operation.caller
    identity = {
        "namespace_id": caller.namespace_id,
        "application_id": caller.application_id,
        "kind": operation.kind,
        "operation_key": operation.key,
    }
    receipt = {**identity, "content_sha256": operation.content_sha256, "resource_id": operation.resource_id}

    async def write(tx: Transaction) -> None:
        try:
            await tx.execute(_INSERT, receipt, duplicate_ok=True)
        except DuplicateKey:
            raise _Seen from None
        await work(tx)

    async def look(tx: Transaction) -> tuple[str, str] | None:
        return await tx.fetch_one(_RECEIPT, identity)

    for _ in range(_TRIES):
        try:
            await platform.pool.run_again(write, budget_s=platform.limits.transaction_s)
        except _Seen:
            found = await platform.pool.read(look, budget_s=platform.limits.transaction_s)
        else:
            return Outcome(operation.resource_id, created=True)
        if found is None:
            # Only an operator's DELETE between the two statements leads here.
            continue
        digest, resource_id = found
        if digest != operation.content_sha256:
            raise ApiError(ErrorCode.IDEMPOTENCY_CONFLICT, "the operation key was used before with other content")
        return Outcome(resource_id, created=False)
    raise ApiError(ErrorCode.UNAVAILABLE, "the operation's receipt came and went; try again with the same key")

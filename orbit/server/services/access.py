"""Who calls, and what they may reach.

A credential belongs to one application in one namespace and is bound to one queue. Things of another application or
namespace do not exist for it (NOT_FOUND, whatever it guesses); another queue of its namespace exists and is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from sqlalchemy import bindparam, literal, select

from orbit.mysql.statement import compile_statement
from orbit.protocol.errors import ApiError, ErrorCode, InvalidValue
from orbit.protocol.values import Secret
from orbit.server.tables import credentials, queues

if TYPE_CHECKING:
    from orbit.mysql.pool import LanePool
    from orbit.mysql.transaction import Transaction
    from orbit.protocol.limits import Limits


class Permission(StrEnum):
    """What a credential may do; each is bound to the credential's queue."""

    TASKS_SUBMIT = "tasks:submit"
    TASKS_READ = "tasks:read"
    TASKS_CANCEL = "tasks:cancel"
    TASKS_MANAGE = "tasks:manage"
    EVENTS_READ = "events:read"
    EVENTS_CONSUME = "events:consume"
    EVENTS_MANAGE = "events:manage"
    WORKERS_CONNECT = "workers:connect"
    WORKERS_CONSUME = "workers:consume"
    QUEUES_MANAGE = "queues:manage"


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated credential."""

    credential_id: str
    application_id: str
    namespace_id: str
    queue_id: str
    permissions: frozenset[str]


_CREDENTIAL: Final = compile_statement(
    select(
        credentials.c.credential_id,
        credentials.c.application_id,
        credentials.c.namespace_id,
        credentials.c.queue_id,
        credentials.c.permissions,
    ).where(credentials.c.token_sha256 == bindparam("digest"), credentials.c.revoked_at.is_(None))
)
_QUEUE_EXISTS: Final = compile_statement(
    select(literal(1)).where(
        queues.c.queue_id == bindparam("queue_id"), queues.c.namespace_id == bindparam("namespace_id")
    )
)


async def authenticate(pool: LanePool, token: str, limits: Limits) -> Caller:
    """Find the credential of a token, by its digest. Raises ApiError UNAUTHENTICATED; safe to cancel."""
    try:
        digest = Secret.parse(token, "token").digest()
    except InvalidValue:
        raise unauthenticated() from None

    async def work(tx: Transaction) -> tuple[str, ...] | None:
        return await tx.fetch_one(_CREDENTIAL, {"digest": digest})

    row = await pool.read(work, budget_s=limits.transaction_s)
    if row is None:
        raise unauthenticated()
    credential_id, application_id, namespace_id, queue_id, permissions = row
    return Caller(credential_id, application_id, namespace_id, queue_id, frozenset(permissions.split(" ")))


def unauthenticated() -> ApiError:
    """One answer for a missing, a malformed, an unknown and a revoked token."""
    return ApiError(ErrorCode.UNAUTHENTICATED, "a valid bearer token is required")


def require(caller: Caller, permission: Permission) -> None:
    """Raise ApiError PERMISSION_DENIED unless the credential has the permission."""
    if permission.value not in caller.permissions:
        raise ApiError(ErrorCode.PERMISSION_DENIED, f"the credential lacks the permission {permission.value}")


def reach(caller: Caller, *, namespace_id: str, application_id: str, queue_id: str, what: str) -> None:
    """Raise ApiError unless the caller may reach a resource with this owner; `what` names its kind."""
    if (namespace_id, application_id) != (caller.namespace_id, caller.application_id):
        raise not_found(what)
    if queue_id != caller.queue_id:
        raise wrong_queue()


def not_found(what: str) -> ApiError:
    """One answer for what does not exist and for what belongs to others."""
    return ApiError(ErrorCode.NOT_FOUND, f"there is no such {what}")


def wrong_queue() -> ApiError:
    """The answer for a queue of the caller's namespace that its credential is not bound to."""
    return ApiError(ErrorCode.PERMISSION_DENIED, "the credential is bound to another queue")


async def check_queue(pool: LanePool, caller: Caller, queue_id: str, limits: Limits) -> None:
    """Raise ApiError unless a request may name this queue: NOT_FOUND outside the namespace, else PERMISSION_DENIED."""
    if queue_id == caller.queue_id:
        return

    async def work(tx: Transaction) -> bool:
        names = {"queue_id": queue_id, "namespace_id": caller.namespace_id}
        return await tx.fetch_one(_QUEUE_EXISTS, names) is not None

    if await pool.read(work, budget_s=limits.transaction_s):
        raise wrong_queue()
    raise not_found("queue")

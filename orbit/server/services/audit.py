"""The audit: who had something changed by hand, written in the transaction that changes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import bindparam, func, insert

from orbit.mysql.statement import compile_statement
from orbit.protocol import strict_json
from orbit.server.tables import audit

if TYPE_CHECKING:
    from orbit.mysql.transaction import Transaction
    from orbit.server.services.access import Caller

_NOTE: Final = compile_statement(
    insert(audit).values(
        namespace_id=bindparam("namespace_id"),
        queue_id=bindparam("queue_id"),
        actor=bindparam("actor"),
        action=bindparam("action"),
        object_id=bindparam("object_id"),
        details=bindparam("details"),
        evidence=bindparam("evidence"),
        at=func.utc_timestamp(6),
    )
)


async def note(
    tx: Transaction,
    caller: Caller,
    action: str,
    object_id: str,
    details: strict_json.Value,
    *,
    evidence: str | None = None,
) -> None:
    """Write that the caller did `action` to a thing on its queue.

    `details` hold no payload, result or secret. `evidence` is the canonical text of what a person gave as proof.
    """
    await tx.execute(
        _NOTE,
        {
            "namespace_id": caller.namespace_id,
            "queue_id": caller.queue_id,
            "actor": caller.credential_id,
            "action": action,
            "object_id": object_id,
            "details": strict_json.canonical(details).decode(),
            "evidence": evidence,
        },
    )

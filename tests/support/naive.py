"""The reconciler that this project does not have: it looks instead of trying again. Tests show how it errs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orbit.mysql.errors import CommitUnconfirmed
from receiver.outcome import Applied
from receiver.record import record_of
from receiver.statements import SELECT_RECORDED
from receiver.store import Store

if TYPE_CHECKING:
    from orbit.mysql.lane import Lane
    from orbit.mysql.transaction import Transaction
    from orbit.protocol.event import Event


class LookingStore(Store):
    """After an unconfirmed COMMIT it SELECTs the row, and takes its absence for a rollback."""

    def __init__(self, lane: Lane, *, consumer_name: str, queue_id: str, looking: Lane) -> None:
        super().__init__(lane, consumer_name=consumer_name, queue_id=queue_id)
        self._looking = looking
        self._identity = (consumer_name, queue_id)

    async def was_committed(self, event: Event) -> bool:
        """The wrong answer: what a SELECT sees now."""
        consumer_name, queue_id = self._identity
        record = record_of(event, consumer_name=consumer_name, queue_id=queue_id)

        async def look(transaction: Transaction) -> tuple[Any, ...] | None:
            return await transaction.fetch_one(SELECT_RECORDED, record.identity)

        return await self._looking.read(look, budget_s=5) is not None

    async def apply_and_look(self, event: Event) -> Applied | None:
        """None: it believes that nothing was committed."""
        try:
            return await self.apply(event)
        except CommitUnconfirmed:
            committed = await self.was_committed(event)
            return Applied(applied=True, duplicate=True) if committed else None

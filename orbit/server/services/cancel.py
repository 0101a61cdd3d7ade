"""Cancel a task that waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit.protocol.http_v1 import Task, TaskState
from orbit.server.decide import task as decide
from orbit.server.ledger import Ledger, TaskRow
from orbit.server.services import tasks

if TYPE_CHECKING:
    from orbit.mysql.transaction import Transaction
    from orbit.server.parts import Platform
    from orbit.server.services.access import Caller


async def cancel(platform: Platform, caller: Caller, task_id: str) -> Task:
    """Cancel a task; a cancelled one is answered again, so the call may be repeated without a key.

    The caller's permission has been checked. Raises ApiError (NOT_FOUND, PERMISSION_DENIED, STATE_CONFLICT) and the
    errors of `LanePool.run`. Cancelling the call itself leaves its outcome to the next one.
    """

    async def work(tx: Transaction) -> tuple[TaskRow, frozenset[str]]:
        ledger = await Ledger.open(tx, caller.queue_id)
        row = tasks.owned(caller, await ledger.lock_task(task_id))
        change = decide.cancel(TaskState(row["state"]), effect_uncertain=bool(row["effect_uncertain"]))
        if change is not None:
            row = await ledger.write(row, change)
        return row, ledger.woken

    row, woken = await platform.pool.run_again(work, budget_s=platform.limits.transaction_s)
    for key in woken:
        platform.wake.notify(key)
    return tasks.task_of(row)

"""Cancel a task: end it where nobody runs it, else store the intent and have the worker told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit.protocol.http_v1 import Task, TaskState
from orbit.server import attempt_statements as sql
from orbit.server.decide import cancel as decide
from orbit.server.decide.cancel import Wish
from orbit.server.ledger import Ledger, TaskRow
from orbit.server.services import audit, endings, tasks
from orbit.server.services.endings import Record
from orbit.server.services.expiry import UNSTARTED
from orbit.server.wake import instance_key, queue_key

if TYPE_CHECKING:
    from orbit.mysql.transaction import Transaction
    from orbit.server.decide.task import Change
    from orbit.server.parts import Platform
    from orbit.server.services.access import Caller
    from orbit.server.services.endings import Row


async def cancel(platform: Platform, caller: Caller, task_id: str) -> Task:
    """Do what `decide.cancel` says, once: asking again gives the task as it is, so no key is needed.

    The caller's permission has been checked. Raises ApiError (NOT_FOUND, PERMISSION_DENIED, STATE_CONFLICT) and the
    errors of `LanePool.run`. Cancelling the call itself leaves its outcome to the next one.
    """

    async def work(tx: Transaction) -> tuple[TaskRow, frozenset[str]]:
        ledger = await Ledger.open(tx, caller.queue_id)
        task = tasks.owned(caller, await ledger.lock_task(task_id))
        attempt = await _attempt(tx, task)
        found = decide.cancel(
            TaskState(task["state"]),
            effect_uncertain=bool(task["effect_uncertain"]),
            requested=task["cancel_requested_at"] is not None,
            attempt_id=None if attempt is None else attempt["attempt_id"],
        )
        if found is Wish.KNOWN:
            return task, frozenset()
        before = task["state"]
        if isinstance(found, Wish):
            task = await ledger.store_intent(task)
        else:
            task = await _end(tx, ledger, task, attempt, found)
        details = {"was": before, "state": task["state"], "version": str(task["version"])}
        await audit.note(tx, caller, "task.cancel", task_id, details)
        if attempt is None:
            return task, ledger.woken
        # The worker is to be told; and where its attempt has ended, its permit and its place are free.
        return task, ledger.woken | {instance_key(attempt["instance_id"]), queue_key(caller.queue_id)}

    row, woken = await platform.pool.run_again(work, budget_s=platform.limits.transaction_s)
    for key in woken:
        platform.wake.notify(key)
    return tasks.task_of(row)


async def _attempt(tx: Transaction, task: TaskRow) -> Row | None:
    """Lock the attempt that a locked task is with, if it is with one."""
    if task["state"] not in {TaskState.LEASED, TaskState.RUNNING}:
        return None
    found = await tx.fetch_one(sql.LOCK_NEWEST, {"task_id": task["task_id"]})
    assert found is not None, "a task with a worker has an attempt"
    return endings.row_of(found)


async def _end(tx: Transaction, ledger: Ledger, task: TaskRow, attempt: Row | None, change: Change) -> TaskRow:
    """End a task that nobody runs, and the attempt that was claimed and not started."""
    if attempt is None:
        return await ledger.write(task, change)
    record = Record(outcome=UNSTARTED, error_code=decide.CANCEL_REQUESTED)
    return await endings.write(tx, ledger, attempt | task, change, record)

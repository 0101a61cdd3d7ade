"""Accept a task: once for its operation key, frozen as it was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit.protocol.http_v1 import SubmitTask, TaskAccepted
from orbit.protocol.values import new_id
from orbit.server.decide import submission
from orbit.server.ledger import Ledger, NewTask, TaskRow
from orbit.server.offload import offload
from orbit.server.services import tasks
from orbit.server.services.access import Caller, check_queue
from orbit.server.services.operations import Operation, once
from orbit.server.wake import queue_key

if TYPE_CHECKING:
    from orbit.mysql.transaction import Transaction
    from orbit.protocol.limits import Limits
    from orbit.protocol.strict_json import Value
    from orbit.server.parts import Platform


async def submit(
    platform: Platform, caller: Caller, operation_key: str, request: SubmitTask, payload: Value
) -> TaskAccepted:
    """Accept a task, or give the one that this key brought before, as it is now.

    `payload` is the parsed form of `request.payload`. The caller's permission has been checked. Raises InvalidValue,
    ApiError (NOT_FOUND, PERMISSION_DENIED, IDEMPOTENCY_CONFLICT) and what `operations.once` raises; cancelling leaves
    the outcome to the next call with the same key.
    """
    content_sha256 = await offload(len(bytes(request.payload)), _examine, request, payload, platform.limits)
    await check_queue(platform.pool, caller, request.queue_id, platform.limits)
    task = NewTask(
        task_id=new_id(), namespace_id=caller.namespace_id, application_id=caller.application_id, request=request
    )
    operation = Operation(
        caller=caller,
        kind="tasks.submit",
        key=operation_key,
        content_sha256=content_sha256,
        resource_id=task.task_id,
    )
    written: tuple[TaskRow, frozenset[str]] | None = None

    async def work(tx: Transaction) -> None:
        nonlocal written
        ledger = await Ledger.open(tx, request.queue_id)
        row = await ledger.create(task)
        written = row, ledger.woken

    outcome = await once(platform, operation, work)
    if not outcome.created:
        return TaskAccepted(task=await tasks.get(platform, caller, outcome.resource_id), created=False)
    assert written is not None
    row, woken = written
    for key in (*woken, queue_key(request.queue_id)):
        platform.wake.notify(key)
    return TaskAccepted(task=tasks.task_of(row), created=True)


def _examine(request: SubmitTask, payload: Value, limits: Limits) -> str:
    submission.check(request, payload, limits)
    return submission.digest(request, payload)

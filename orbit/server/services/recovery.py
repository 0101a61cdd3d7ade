"""What a person does about a task: say what became of it, or have it done again as a new task.

Both are done once for their operation key, in one transaction with the audit. A person's evidence goes to the audit
and nowhere else: no event and no log has it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec import UNSET, Raw

from orbit.protocol import strict_json
from orbit.protocol.http_v1 import RecoverySafety, ResolveTask, SubmitTask, Task, TaskAccepted, TaskState
from orbit.protocol.values import format_time, new_id
from orbit.server.decide import recovery as decide
from orbit.server.ledger import Ledger, NewTask, TaskRow
from orbit.server.offload import offload
from orbit.server.services import audit, tasks
from orbit.server.services.operations import Operation, once
from orbit.server.wake import queue_key

if TYPE_CHECKING:
    from datetime import datetime

    from orbit.mysql.transaction import Transaction
    from orbit.protocol.limits import Limits
    from orbit.protocol.strict_json import Value
    from orbit.server.parts import Platform
    from orbit.server.services.access import Caller


@dataclass(frozen=True, slots=True)
class _Said:
    """A resolution that passed its checks: canonical texts, and the digest that makes two of them the same."""

    result: str | None = field(repr=False)
    evidence: str = field(repr=False)
    content_sha256: str


async def resolve(platform: Platform, caller: Caller, operation_key: str, task_id: str, request: ResolveTask) -> Task:
    """Write down what a person found out about a task under review; gives the task as it is now.

    The task gets a version and a result event, and its effect is certain again. The caller's permission has been
    checked. Raises InvalidValue, ApiError (NOT_FOUND, PERMISSION_DENIED, STATE_CONFLICT, IDEMPOTENCY_CONFLICT) and what
    `operations.once` raises; cancelling leaves the outcome to the next call with the same key.
    """
    size = len(bytes(request.evidence)) + (0 if request.result is UNSET else len(bytes(request.result)))
    said = await offload(size, _examine, task_id, request, platform.limits)
    woken: frozenset[str] = frozenset()

    async def work(tx: Transaction) -> None:
        nonlocal woken
        ledger = await Ledger.open(tx, caller.queue_id)
        row = tasks.owned(caller, await ledger.lock_task(task_id))
        change = decide.resolve(TaskState(row["state"]), request, said.result)
        row = await ledger.write(row, change)
        details: dict[str, Value] = {"outcome": request.outcome.value, "version": str(row["version"])}
        if request.error_code is not UNSET:
            details["error_code"] = request.error_code
        await audit.note(tx, caller, "task.resolve", task_id, details, evidence=said.evidence)
        woken = ledger.woken

    await once(platform, _operation(caller, "tasks.resolve", operation_key, said.content_sha256, task_id), work)
    for key in woken:
        platform.wake.notify(key)
    return await tasks.get(platform, caller, task_id)


async def retry(platform: Platform, caller: Caller, operation_key: str, task_id: str) -> TaskAccepted:
    """Submit what a task was asked for again, as a new task that names it; the old one stays as it is.

    The new one has all its attempts and its whole time before it. As `resolve` otherwise.
    """
    made = new_id()
    content_sha256 = _digest({"task_id": task_id})
    woken: frozenset[str] = frozenset()

    async def work(tx: Transaction) -> None:
        nonlocal woken
        ledger = await Ledger.open(tx, caller.queue_id)
        row = tasks.owned(caller, await ledger.lock_task(task_id))
        decide.retry(TaskState(row["state"]))
        await ledger.create(
            NewTask(
                task_id=made,
                namespace_id=caller.namespace_id,
                application_id=caller.application_id,
                request=_request_of(row, ledger.now),
                retry_of=task_id,
            )
        )
        await audit.note(tx, caller, "task.retry", task_id, {"new_task_id": made, "was": row["state"]})
        woken = ledger.woken | {queue_key(caller.queue_id)}

    outcome = await once(platform, _operation(caller, "tasks.retry", operation_key, content_sha256, made), work)
    for key in woken:
        platform.wake.notify(key)
    return TaskAccepted(task=await tasks.get(platform, caller, outcome.resource_id), created=outcome.created)


def _operation(caller: Caller, kind: str, key: str, content_sha256: str, resource_id: str) -> Operation:
    return Operation(caller=caller, kind=kind, key=key, content_sha256=content_sha256, resource_id=resource_id)


def _examine(task_id: str, request: ResolveTask, limits: Limits) -> _Said:
    decide.check(request)
    proof = decide.evidence(request, limits)
    result = decide.result(request, limits)
    content: dict[str, Value] = {
        "task_id": task_id,
        "outcome": request.outcome.value,
        "evidence": Raw(proof.encode()),
    }
    if result is not None:
        content["result"] = Raw(result.encode())
    if request.error_code is not UNSET:
        content["error_code"] = request.error_code
    return _Said(result, proof, _digest(content))


def _digest(content: Value) -> str:
    return hashlib.sha256(strict_json.canonical(content)).hexdigest()


def _request_of(row: TaskRow, now: datetime) -> SubmitTask:
    """What a task was asked for, to be asked for at `now`."""
    start = decide.latest_start(now, row["created_at"], row["latest_start_at"])
    return SubmitTask(
        queue_id=row["queue_id"],
        handler=row["handler"],
        handler_version=row["handler_version"],
        payload_version=row["payload_version"],
        payload=Raw(row["payload"].encode()),
        recovery_safety=RecoverySafety(row["recovery_safety"]),
        task_timeout_ms=row["task_timeout_ms"],
        latest_start_at=UNSET if start is None else format_time(start),
        retry=tasks.retry_policy_of(row),
        priority=row["priority"],
        concurrency_key=UNSET if row["concurrency_key"] is None else row["concurrency_key"],
    )

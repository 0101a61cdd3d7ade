"""The ledger: the only writer of tasks' states, of events and of new deliveries.

One change of a task is one transaction: the task's row, its event with the text that consumers will see, and one
PENDING delivery for every subscription that wants it, paused ones too. So no reader can skip an event that commits
late, and no event is told without its task having changed.

Lock order: operation receipt, namespace, queue, subscription, worker's instance, the queue's gate, tasks, attempts,
deliveries that exist, permits by key, starts of a window, receipts of workers. New events and deliveries block nobody.
A ledger opens with its queue's row locked FOR SHARE, and creating a subscription locks that row FOR UPDATE: an event
either sees the subscription or was committed before it existed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET
from sqlalchemy import bindparam, func, insert, select, update

from orbit.mysql.statement import Statement, compile_statement
from orbit.protocol.errors import ApiError, ErrorCode
from orbit.protocol.http_v1 import DeliveryState, EventType, SubmitTask
from orbit.protocol.values import new_id
from orbit.server.decide import event, submission
from orbit.server.decide import task as decide
from orbit.server.tables import deliveries, events, queues, subscriptions, tasks
from orbit.server.wake import subscription_key

if TYPE_CHECKING:
    from orbit.mysql.transaction import Transaction
    from orbit.server.decide.task import Change

TaskRow = dict[str, Any]
"""A row of `tasks` by column name, as the driver gives it: times without a zone in UTC, flags as 0 or 1."""

_LOCK_QUEUE: Final = compile_statement(
    select(func.utc_timestamp(6))
    .select_from(queues)
    .where(queues.c.queue_id == bindparam("queue_id"))
    .with_for_update(read=True)
)
_SUBSCRIBERS: Final = compile_statement(
    select(subscriptions.c.subscription_id, subscriptions.c.event_types, subscriptions.c.attempt_budget).where(
        subscriptions.c.queue_id == bindparam("queue_id")
    )
)
_LOCK_TASK: Final = compile_statement(select(tasks).where(tasks.c.task_id == bindparam("task_id")).with_for_update())
_INSERT_TASK: Final = compile_statement(
    insert(tasks).values({column.name: bindparam(column.name) for column in tasks.c if column.computed is None})
)
_CHANGED: Final = (
    "state",
    "version",
    "attempt_count",
    "effect_uncertain",
    "result",
    "error_code",
    "available_at",
    "cancel_requested_at",
    "updated_at",
    "completed_at",
)
_UPDATE_TASK: Final = compile_statement(
    update(tasks)
    .where(tasks.c.task_id == bindparam("the_task_id"), tasks.c.version == bindparam("the_version"))
    .values({name: bindparam(name) for name in _CHANGED})
)
_STORE_INTENT: Final = compile_statement(
    update(tasks)
    .where(tasks.c.task_id == bindparam("the_task_id"), tasks.c.cancel_requested_at.is_(None))
    .values(cancel_requested_at=bindparam("now"))
)
_INSERT_EVENT: Final = compile_statement(insert(events))
NEEDED: Final = (
    tasks.c.task_id,
    tasks.c.version,
    tasks.c.attempt_count,
    tasks.c.retry_max_attempts,
    tasks.c.effect_uncertain,
    tasks.c.available_at,
    tasks.c.cancel_requested_at,
    tasks.c.updated_at,
)
"""What `Ledger.write` reads of a task's row."""
_DELIVERY_COLUMNS: Final = (
    "delivery_id",
    "subscription_id",
    "event_id",
    "state",
    "attempts",
    "attempt_budget",
    "epoch",
    "created_at",
    "updated_at",
)


@dataclass(frozen=True, slots=True)
class Subscriber:
    """What the ledger needs of a subscription."""

    subscription_id: str
    event_types: frozenset[str]
    attempt_budget: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTask:
    """A task that was accepted: whose it is, and what was asked for; `retry_of` names the task it repeats."""

    task_id: str
    namespace_id: str
    application_id: str
    request: SubmitTask
    retry_of: str | None = None


class Ledger:
    """The ledger of one queue inside one transaction; `open` makes it, before the transaction locks anything else.

    `now` is the database's clock, read once and without a zone. `woken` collects the keys to notify after COMMIT.
    Every method may be cancelled: the transaction then ends without COMMIT.
    """

    def __init__(self, tx: Transaction, queue_id: str, now: datetime, subscribers: tuple[Subscriber, ...]) -> None:
        self._tx = tx
        self._queue_id = queue_id
        self._subscribers = subscribers
        self._woken: set[str] = set()
        self.now = now

    @classmethod
    async def open(cls, tx: Transaction, queue_id: str) -> Ledger:
        """Lock the queue against new subscriptions and read those that there are. Raises ApiError NOT_FOUND."""
        row = await tx.fetch_one(_LOCK_QUEUE, {"queue_id": queue_id})
        if row is None:
            raise ApiError(ErrorCode.NOT_FOUND, "there is no such queue")
        subscribers = await tx.fetch(_SUBSCRIBERS, {"queue_id": queue_id})
        return cls(
            tx,
            queue_id,
            row[0],
            tuple(Subscriber(name, frozenset(types.split(" ")), budget) for name, types, budget in subscribers),
        )

    @property
    def woken(self) -> frozenset[str]:
        """The wake-up keys of the subscriptions that got a delivery."""
        return frozenset(self._woken)

    def at(self, task: TaskRow) -> datetime:
        """The time of a change of this locked task, for whoever decides it: versions' times do not go back.

        Another transaction may have read the clock later and still have got the row's lock first.
        """
        now: datetime = max(self.now, task["updated_at"])
        return now

    async def lock_task(self, task_id: str) -> TaskRow | None:
        """Lock a task's row for a change that depends on it, and read it."""
        row = await self._tx.fetch_one(_LOCK_TASK, {"task_id": task_id})
        return None if row is None else dict(zip(tasks.c.keys(), row, strict=True))

    async def create(self, task: NewTask) -> TaskRow:
        """Write a task's first version; gives the row as written."""
        change = decide.submit()
        request = task.request
        start = submission.latest_start(request)
        row: TaskRow = {
            "task_id": task.task_id,
            "namespace_id": task.namespace_id,
            "application_id": task.application_id,
            "queue_id": self._queue_id,
            "handler": request.handler,
            "handler_version": request.handler_version,
            "payload_version": request.payload_version,
            "payload": bytes(request.payload).decode(),
            "recovery_safety": request.recovery_safety.value,
            "task_timeout_ms": request.task_timeout_ms,
            "latest_start_at": None if start is None else start.replace(tzinfo=None),
            "retry_max_attempts": request.retry.max_attempts,
            "retry_initial_delay_ms": request.retry.initial_delay_ms,
            "retry_max_delay_ms": request.retry.max_delay_ms,
            "attempt_timeout_ms": request.retry.attempt_timeout_ms,
            "priority": request.priority,
            "concurrency_key": None if request.concurrency_key is UNSET else request.concurrency_key,
            "retry_of": task.retry_of,
            "state": change.state.value,
            "version": 1,
            "attempt_count": 0,
            "effect_uncertain": False,
            "result": None,
            "error_code": None,
            "available_at": self.now,
            "deadline_at": self.now + timedelta(milliseconds=request.task_timeout_ms),
            "cancel_requested_at": None,
            "created_at": self.now,
            "updated_at": self.now,
            "completed_at": None,
        }
        await self._tx.execute(_INSERT_TASK, row)
        await self._tell(row, self.now, change)
        return row

    async def write(self, task: TaskRow, change: Change) -> TaskRow:
        """Write a task's next version; gives the row as it is now.

        `task` is a locked row, from `lock_task` or another locking read of at least `NEEDED`.
        """
        at = self.at(task)
        uncertain = task["effect_uncertain"] if change.effect_uncertain is None else change.effect_uncertain
        changed: TaskRow = {
            "state": change.state.value,
            "version": task["version"] + 1,
            "attempt_count": task["attempt_count"] + change.claims,
            "effect_uncertain": bool(uncertain),
            "result": change.result,
            "error_code": change.error_code,
            "available_at": task["available_at"] if change.available_at is None else change.available_at,
            "cancel_requested_at": at if change.cancel_requested else task["cancel_requested_at"],
            "updated_at": at,
            "completed_at": at if change.state in decide.COMPLETED else None,
        }
        done = await self._tx.execute(
            _UPDATE_TASK, {"the_task_id": task["task_id"], "the_version": task["version"], **changed}
        )
        if done.rowcount != 1:
            raise RuntimeError("a task's row was written without its lock")
        row = task | changed
        await self._tell(row, at, change)
        return row

    async def store_intent(self, task: TaskRow) -> TaskRow:
        """Note on a locked task that its end was asked for; gives the row as it is now.

        No change of state, so neither version nor event nor a later `updated_at`.
        """
        at = self.at(task)
        done = await self._tx.execute(_STORE_INTENT, {"the_task_id": task["task_id"], "now": at})
        if done.rowcount != 1:
            raise RuntimeError("a task's row was written without its lock")
        return task | {"cancel_requested_at": at}

    async def _tell(self, task: TaskRow, at: datetime, change: Change) -> None:
        """Write the event of a change, and who gets it; `task` is the row after the change."""
        event_id = new_id()
        text = event.freeze(
            event_id=event_id,
            queue_id=self._queue_id,
            task_id=task["task_id"],
            task_version=task["version"],
            occurred_at=at,
            change=change,
            effect_uncertain=task["effect_uncertain"],
            attempt_count=task["attempt_count"],
            max_attempts=task["retry_max_attempts"],
        )
        await self._tx.execute(
            _INSERT_EVENT,
            {
                "event_id": event_id,
                "queue_id": self._queue_id,
                "task_id": task["task_id"],
                "task_version": task["version"],
                "event_type": change.event_type.value,
                "event": text,
                "occurred_at": at,
            },
        )
        await self._deliver(event_id, change.event_type)

    async def _deliver(self, event_id: str, event_type: EventType) -> None:
        wanting = [one for one in self._subscribers if event_type.value in one.event_types]
        if not wanting:
            return
        parameters: dict[str, Any] = {}
        for position, subscriber in enumerate(wanting):
            values = (
                new_id(),
                subscriber.subscription_id,
                event_id,
                DeliveryState.PENDING.value,
                0,
                subscriber.attempt_budget,
                0,
                self.now,
                self.now,
            )
            parameters |= {f"{name}_{position}": value for name, value in zip(_DELIVERY_COLUMNS, values, strict=True)}
        await self._tx.execute(_insert_deliveries(len(wanting)), parameters)
        self._woken.update(subscription_key(one.subscription_id) for one in wanting)


@cache
def _insert_deliveries(count: int) -> Statement:
    """One INSERT of `count` rows; a namespace's limit of subscriptions bounds how many such statements there are."""
    return compile_statement(
        insert(deliveries).values(
            [{name: bindparam(f"{name}_{position}") for name in _DELIVERY_COLUMNS} for position in range(count)]
        )
    )

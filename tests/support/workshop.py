"""One queue and its workers on nodes of the test's own: real services over a real database, no sockets between.

No sweeper runs here: `sweep` is one pass, when the test wants it. Time is moved in the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Raw

from orbit.mysql.pool import LanePool
from orbit.protocol import strict_json
from orbit.protocol.attempt_v1 import Attempt, CommandResult, Finish, Lease, Outcome
from orbit.protocol.http_v1 import RecoverySafety, RetryPolicy, SubmitTask
from orbit.protocol.values import new_id
from orbit.protocol.worker_v1 import Capacity
from orbit.server.bootstrap import bootstrap
from orbit.server.services import access, attempts, claim, expiry, submit, workers
from tests.support.deliveries import BUDGET_S
from tests.support.rows import sql
from tests.support.worker_client import registration, report

if TYPE_CHECKING:
    from orbit.mysql.dsn import DSN
    from orbit.mysql.transaction import Transaction
    from orbit.protocol.assignment_v1 import Assignment
    from orbit.protocol.worker_v1 import Hello
    from orbit.server.parts import Platform
    from orbit.server.services.access import Caller
    from orbit.server.services.claim import Claimed
    from orbit.server.services.workers import Session


T = TypeVar("T")


class Meddling(LanePool):
    """A pool whose reads are followed by what the test does meanwhile."""

    def __init__(self, dsn: DSN, meddle: Callable[[], Awaitable[object]]) -> None:
        super().__init__(dsn, 2, name="meddling")
        self.meddle = meddle

    async def read(self, work: Callable[[Transaction], Awaitable[T]], *, budget_s: float) -> T:
        found = await super().read(work, budget_s=budget_s)
        await self.meddle()
        return found


@dataclass(frozen=True, slots=True)
class Workshop:
    """A fresh application with one queue, seen through one node; `through` gives the same seen through another."""

    platform: Platform
    caller: Caller

    @classmethod
    async def open(cls, platform: Platform, dsn: DSN) -> Workshop:
        """Bootstrap names that no other test has."""
        name = new_id()
        made = await asyncio.to_thread(
            bootstrap, dsn, application=name, namespace=name, environment="test", queue="work", worker_access=True
        )
        return cls(platform, await access.authenticate(platform.pool, made["token"], platform.limits))

    def through(self, platform: Platform) -> Workshop:
        """The same application at another node."""
        return replace(self, platform=platform)

    @property
    def queue_id(self) -> str:
        """The queue."""
        return self.caller.queue_id

    async def submit(
        self, *, retry: dict[str, int] | None = None, payload: str = "{}", idempotent: bool = False, **given: Any
    ) -> str:
        """Submit a task that a worker of this workshop can do; its id."""
        values: dict[str, Any] = {
            "queue_id": self.queue_id,
            "handler": "text.normalize",
            "handler_version": "v1",
            "payload_version": "v1",
            "recovery_safety": RecoverySafety.IDEMPOTENT if idempotent else RecoverySafety.RECONCILE_ONLY,
            "retry": RetryPolicy(**(retry or {})),
        }
        request = SubmitTask(payload=Raw(payload.encode()), **(values | given))
        document = strict_json.parse(payload.encode(), max_bytes=2**20)
        accepted = await submit.submit(self.platform, self.caller, new_id(), request, document)
        return accepted.task.task_id

    async def hire(self, hello: Hello | None = None, *, capacity: int | None = 16, **given: Any) -> Hand:
        """Begin a session of a new worker, or of the one that says this hello, and announce a capacity."""
        hello = hello or registration(self.queue_id, **given)
        session, _ = await workers.register(self.platform, self.caller, hello)
        hand = Hand(self.platform, session, hello)
        if capacity is not None:
            await hand.announce(capacity)
        return hand

    async def sweep(self) -> int:
        """End what is over now."""
        return await expiry.end_leases(self.platform) + await expiry.end_overdue(self.platform)

    async def task(self, task_id: str) -> dict[str, Any]:
        """The task's row by column."""
        return (await self.table("tasks", task_id=task_id))[0]

    async def attempts(self, task_id: str) -> list[dict[str, Any]]:
        """The rows of the task's attempts, oldest first."""
        return sorted(await self.table("attempts", task_id=task_id), key=lambda row: row["epoch"])

    async def events(self, task_id: str) -> list[dict[str, Any]]:
        """What the task's events say, oldest first."""
        rows = sorted(await self.table("events", task_id=task_id), key=lambda row: row["task_version"])
        return [msgspec.json.decode(row["event"]) for row in rows]

    async def table(self, table: str, **where: str) -> list[dict[str, Any]]:
        """Rows of a table by column."""
        names = await self.sql(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = :name"
            " ORDER BY ordinal_position",
            name=table,
        )
        condition = " AND ".join(f"{name} = :{name}" for name in where) or "1 = 1"
        found = await self.sql(f"SELECT * FROM {table} WHERE {condition}", **where)
        return [dict(zip((name for (name,) in names), row, strict=True)) for row in found]

    async def lapse(self, task_id: str) -> None:
        """Let the leases of the task's attempts have run out a second ago."""
        await self.sql(
            "UPDATE attempts SET lease_until = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND"
            " WHERE task_id = :id AND state != 'ENDED'",
            id=task_id,
        )

    async def due(self, task_id: str) -> None:
        """Let the task have been available for a moment."""
        await self.sql("UPDATE tasks SET available_at = UTC_TIMESTAMP(6) WHERE task_id = :id", id=task_id)

    async def ask_to_cancel(self, task_id: str) -> None:
        """Store the intent and nothing else."""
        await self.sql("UPDATE tasks SET cancel_requested_at = UTC_TIMESTAMP(6) WHERE task_id = :id", id=task_id)

    async def sql(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run one statement of the test's in a transaction of its own; the rows, if it has any."""

        async def work(tx: Transaction) -> list[tuple[Any, ...]]:
            return await tx.fetch(sql(statement), parameters)

        return await self.platform.pool.run(work, budget_s=BUDGET_S)


@dataclass(frozen=True, slots=True)
class Hand:
    """One worker's session at one node."""

    platform: Platform
    session: Session
    hello: Hello

    def through(self, platform: Platform) -> Hand:
        """The same session at another node, which cannot be but by a proxy that changes its mind."""
        return replace(self, platform=platform)

    async def announce(self, capacity: int, *, sequence: int = 1, drain: bool = False) -> None:
        """Set the capacity."""
        body = Capacity(sequence=sequence, capacity=capacity, drain=drain)
        await workers.announce(self.platform, self.session, body)

    async def ask(self) -> Claimed:
        """Claim as a session's pusher does."""
        return await claim.claim(self.platform, self.session, await workers.look(self.platform, self.session))

    async def claim(self) -> list[Assignment]:
        """The assignments of one claim."""
        return list((await self.ask()).assignments)

    async def take(self) -> Attempt:
        """Claim exactly one task."""
        (assignment,) = await self.claim()
        return assignment.attempt

    async def run(self) -> Attempt:
        """Claim exactly one task and start it."""
        attempt = await self.take()
        await self.start(attempt)
        return attempt

    async def start(self, attempt: Attempt, message_id: str | None = None) -> CommandResult:
        """Ask for the permission to run."""
        return await attempts.start(self.platform, self.session, message_id or new_id(), attempt)

    async def renew(self, attempt: Attempt, message_id: str | None = None) -> CommandResult:
        """Prolong the lease."""
        return await attempts.renew(self.platform, self.session, message_id or new_id(), attempt)

    async def finish(
        self, attempt: Attempt, outcome: Outcome = Outcome.SUCCEEDED, message_id: str | None = None, **given: Any
    ) -> CommandResult:
        """Report."""
        return await self.tell(report(attempt, outcome, **given), message_id)

    async def tell(self, finish: Finish, message_id: str | None = None) -> CommandResult:
        """Send this report."""
        return await attempts.finish(self.platform, self.session, message_id or new_id(), finish)

    async def resume(self, attempt: Attempt) -> Lease:
        """Ask what holds."""
        return await attempts.resume(self.platform, self.session, attempt)

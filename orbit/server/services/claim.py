"""Give tasks to a worker: choose, lock, lease.

A claim looks without locks first, so that an idle worker's question costs reads alone. What it then takes, it takes in
one transaction: the attempt that is spent, the event, the lease, the permit of a key. Bounds that others could pass at
the same time are kept by locks: the instance's row for its capacity, the queue's gate for its concurrency limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from orbit.mysql.errors import CommitUnconfirmed
from orbit.protocol.assignment_v1 import AssignedTask, Assignment
from orbit.protocol.attempt_v1 import Attempt, AttemptState, Lease
from orbit.protocol.values import Secret, new_id
from orbit.runtime.logs import get_logger
from orbit.server import attempt_statements, claim_statements
from orbit.server.decide import authority, dispatch
from orbit.server.decide import task as decide
from orbit.server.ledger import Ledger
from orbit.server.services import candidates, workers

if TYPE_CHECKING:
    from orbit.mysql.transaction import Transaction
    from orbit.server.parts import Platform
    from orbit.server.services.candidates import Candidates
    from orbit.server.services.workers import Session, Situation

_log = get_logger(__name__)

_Row = dict[str, Any]


class Next(StrEnum):
    """When it is worth asking again."""

    AT_ONCE = "at once"
    SOON = "soon"  # others are at the same tasks
    LATER = "later"  # when something changes


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a claim brought."""

    assignments: Sequence[Assignment] = ()
    then: Next = Next.LATER


async def claim(platform: Platform, session: Session, situation: Situation) -> Claimed:
    """Claim tasks for a session, at most `situation.room` and `Limits.claim_batch`.

    Raises ApiError SESSION_FENCED and the errors of `LanePool.run`. Cancelling, or a COMMIT that stays unconfirmed
    although it was asked about again, may leave attempts that nobody knows of; they end unstarted with their leases.
    """
    batch = min(situation.room, platform.limits.claim_batch)
    if batch < 1:
        return Claimed()
    found = await candidates.look(platform, session, batch + platform.limits.claim_batch)
    if not found.task_ids:
        return Claimed(then=Next.LATER if found.whole else Next.SOON)
    claimed = Claimed()
    woken: frozenset[str] = frozenset()

    async def work(tx: Transaction) -> None:
        nonlocal claimed, woken
        ledger = await Ledger.open(tx, session.queue_id)
        claimed = await _Claim(tx, ledger, platform, session).run(found, batch)
        woken = ledger.woken

    try:
        await platform.pool.run_again(work, budget_s=platform.limits.transaction_s)
    except CommitUnconfirmed as error:
        _log.warning("claim unconfirmed", errno=error.errno, connection=error.connection_id)
        # Their secrets are known here alone.
        claimed = Claimed(await _settled(platform, claimed.assignments), Next.SOON)
    for key in woken:
        platform.wake.notify(key)
    return claimed


@dataclass(frozen=True, slots=True)
class _Permit:
    """The attempt to be made, and the token of its key's permit."""

    attempt_id: str
    token: int | None = None


@dataclass(frozen=True, slots=True)
class _Claim:
    """One claim inside its transaction."""

    tx: Transaction
    ledger: Ledger
    platform: Platform
    session: Session

    async def run(self, found: Candidates, batch: int) -> Claimed:
        """Claim at most `batch` of the candidates."""
        room = min(batch, await self._room())
        if room == 0:
            return Claimed()
        rows = await self._take(found.task_ids, room)
        if not rows:
            return Claimed(then=Next.SOON)
        assignments = [await self._lease(row, permit) for row, permit in await self._permitted(rows)]
        # As many candidates as were asked for: behind those of a key that is now taken there may be others.
        asked_for = batch + self.platform.limits.claim_batch
        if assignments and (len(assignments) == batch or len(found.task_ids) == asked_for):
            return Claimed(assignments, Next.AT_ONCE)
        return Claimed(assignments, Next.LATER if found.whole else Next.SOON)

    async def _room(self) -> int:
        """How many tasks may be claimed, by the worker's capacity and the queue's limits, under their locks."""
        situation = await workers.lock(self.tx, self.session)
        if situation.room == 0:
            return 0
        queue = {"queue_id": self.session.queue_id}
        if situation.concurrency_limit is not None:
            await self.tx.execute(claim_statements.ENTER_GATE, queue)
        opened = unstarted = starts = 0
        since = self.ledger.now
        if situation.start_limit is not None:
            assert situation.start_window_ms is not None
            since = dispatch.window_start(self.ledger.now, situation.start_window_ms)
            counted = await self.tx.fetch_one(attempt_statements.STARTS, queue | {"window_start": since})
            starts = 0 if counted is None else counted[0]
        if situation.concurrency_limit is not None or situation.start_limit is not None:
            ((opened, unstarted),) = await self.tx.fetch(claim_statements.OPEN_IN_QUEUE, queue | {"since": since})
        return dispatch.room_of(
            situation.room,
            concurrency_limit=situation.concurrency_limit,
            opened=opened,
            start_limit=situation.start_limit,
            starts=starts,
            unstarted=int(unstarted),
        )

    async def _take(self, candidates: Sequence[str], room: int) -> list[_Row]:
        """Lock the first `room` of the candidates that are still to be had, in the order of dispatch.

        No more than are wanted are locked at a time: others pass over what is locked.
        """
        rows: list[_Row] = []
        keys: set[str] = set()
        rest = list(candidates)
        while rest and len(rows) < room:
            wanted = room - len(rows)
            asked, rest = rest[:wanted], rest[wanted:]
            found = await self.tx.fetch(
                claim_statements.LOCK_TASKS, {"task_ids": asked, "queue_id": self.session.queue_id}
            )
            for row in sorted((dict(zip(claim_statements.COLUMNS, one, strict=True)) for one in found), key=_place):
                key = row["concurrency_key"]
                # A key has one permit: the next task with it waits for that one's end.
                if key is None or key not in keys:
                    rows.append(row)
                    keys.add(key)
        return rows

    async def _permitted(self, rows: Sequence[_Row]) -> list[tuple[_Row, _Permit]]:
        """Take the permits of those tasks that have a key, in the keys' order; without one a task is left alone."""
        permits: dict[str, _Permit] = {}
        for row in sorted(rows, key=lambda one: one["concurrency_key"] or ""):
            attempt_id = new_id()
            if row["concurrency_key"] is None:
                permits[row["task_id"]] = _Permit(attempt_id)
                continue
            key = {"queue_id": self.session.queue_id, "concurrency_key": row["concurrency_key"]}
            await self.tx.execute(attempt_statements.TAKE_PERMIT, key | {"attempt_id": attempt_id})
            ((holder, token),) = await self.tx.fetch(attempt_statements.PERMIT, key)
            if holder == attempt_id:
                permits[row["task_id"]] = _Permit(attempt_id, token)
        return [(row, permits[row["task_id"]]) for row in rows if row["task_id"] in permits]

    async def _lease(self, row: _Row, permit: _Permit) -> Assignment:
        """Spend an attempt of a locked task."""
        secret = Secret.new()
        lease_until = authority.reserve(
            self.ledger.at(row),
            self.platform.limits.task_lease_s,
            deadline_at=row["deadline_at"],
            latest_start_at=row["latest_start_at"],
        )
        task = await self.ledger.write(row, decide.claim(permit.attempt_id))
        await self.tx.execute(
            attempt_statements.INSERT_ATTEMPT,
            {
                "attempt_id": permit.attempt_id,
                "task_id": task["task_id"],
                "queue_id": self.session.queue_id,
                "instance_id": self.session.instance_id,
                "epoch": task["attempt_count"],
                "state": AttemptState.LEASED.value,
                "lease_secret_sha256": secret.digest(),
                "node": self.platform.node,
                "leased_at": task["updated_at"],
                "lease_until": lease_until,
                "concurrency_key": task["concurrency_key"],
                "concurrency_token": permit.token,
            },
        )
        attempt = Attempt(
            task_id=task["task_id"], attempt_id=permit.attempt_id, epoch=task["attempt_count"], lease_secret=secret
        )
        return _assignment(self.session, task, attempt, lease_until, permit.token)


def _place(row: _Row) -> tuple[int, datetime, str]:
    return dispatch.place(
        row["now"], priority=row["priority"], available_at=row["available_at"], task_id=row["task_id"]
    )


def _assignment(session: Session, task: _Row, attempt: Attempt, lease_until: datetime, token: int | None) -> Assignment:
    return Assignment(
        task=AssignedTask(
            task_id=task["task_id"],
            queue_id=session.queue_id,
            handler=task["handler"],
            handler_version=task["handler_version"],
            payload_version=task["payload_version"],
            payload=Raw(task["payload"].encode()),
            attempt_number=task["attempt_count"],
            max_attempts=task["retry_max_attempts"],
            attempt_timeout_ms=task["attempt_timeout_ms"],
            deadline_at=task["deadline_at"].replace(tzinfo=UTC),
            priority=task["priority"],
            effect_uncertain=task["effect_uncertain"],
            concurrency_key=task["concurrency_key"],
            concurrency_token=token,
            retry_of=task["retry_of"],
        ),
        attempt=attempt,
        lease=Lease(
            task_id=attempt.task_id,
            attempt_id=attempt.attempt_id,
            epoch=attempt.epoch,
            state=AttemptState.LEASED,
            active=True,
            server_time=task["updated_at"].replace(tzinfo=UTC),
            lease_until=lease_until.replace(tzinfo=UTC),
        ),
    )


async def _settled(platform: Platform, made: Sequence[Assignment]) -> list[Assignment]:
    """Those of the assignments that a COMMIT without an answer did make."""
    if not made:
        return []

    async def work(tx: Transaction) -> set[str]:
        ids = [one.attempt.attempt_id for one in made]
        return {name for (name,) in await tx.fetch(claim_statements.SETTLE, {"attempt_ids": ids})}

    there = await platform.pool.run_again(work, budget_s=platform.limits.transaction_s)
    return [one for one in made if one.attempt.attempt_id in there]

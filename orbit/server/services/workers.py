"""Worker processes and their sessions: who may take a queue's tasks, and how many.

An instance is one process of a worker. Its first hello fixes what it is: credential, queue, capabilities, flags and
secret; a later hello of the same instance brings the same. Each hello begins a session, numbered by `revision`, and
fences all earlier ones, on whichever node they live: every command, capacity and claim compares the revision. Capacity
is absolute, renews the session and never a lease. Drain belongs to the instance, survives reconnecting and is never
undone; it stops claims and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from sqlalchemy import and_, bindparam, func, insert, literal_column, select, update

from orbit.mysql.errors import DuplicateKey
from orbit.mysql.statement import compile_statement
from orbit.protocol import strict_json
from orbit.protocol.assignment_v1 import Cancellation
from orbit.protocol.errors import ApiError, ErrorCode
from orbit.protocol.worker_v1 import Capability, Capacity, Hello, Welcome
from orbit.server.attempt_statements import NOW, OPEN
from orbit.server.services.access import Caller, check_queue
from orbit.server.tables import attempts, credentials, queues, tasks, worker_instances
from orbit.server.wake import instance_key

if TYPE_CHECKING:
    from orbit.mysql.transaction import Transaction
    from orbit.server.parts import Platform

_I: Final = worker_instances.c

_REGISTRATION: Final = compile_statement(
    select(NOW, _I.secret_sha256, _I.credential_id, _I.registration_sha256, _I.revision, _I.drain)
    .where(_I.instance_id == bindparam("instance_id"))
    .with_for_update()
)
_CLOCK: Final = compile_statement(select(NOW))
_REGISTER: Final = compile_statement(
    insert(worker_instances).values({column.name: bindparam(column.name) for column in worker_instances.c})
)
_BEGIN_SESSION: Final = compile_statement(
    update(worker_instances)
    .where(_I.instance_id == bindparam("the_instance_id"))
    .values(
        revision=bindparam("revision"),
        session_until=bindparam("session_until"),
        node=bindparam("node"),
        sequence=literal_column("0"),
        capacity=literal_column("0"),
        updated_at=bindparam("now"),
    )
)
_ANNOUNCE: Final = compile_statement(
    update(worker_instances)
    .where(_I.instance_id == bindparam("the_instance_id"))
    .values(
        sequence=bindparam("sequence"),
        capacity=bindparam("capacity"),
        drain=bindparam("drain"),
        session_until=bindparam("session_until"),
        updated_at=bindparam("now"),
    )
)
_HELD: Final = (
    select(func.count())
    .select_from(attempts)
    .where(attempts.c.instance_id == _I.instance_id, OPEN)
    .correlate(worker_instances)
    .scalar_subquery()
)
_LOOK: Final = compile_statement(
    select(
        _I.revision,
        and_(_I.session_until > NOW, credentials.c.revoked_at.is_(None)),
        _I.capacity,
        _I.drain,
        _HELD,
        queues.c.paused,
        queues.c.concurrency_limit,
        queues.c.start_limit,
        queues.c.start_window_ms,
    )
    .join_from(worker_instances, queues, _I.queue_id == queues.c.queue_id)
    .join(credentials, _I.credential_id == credentials.c.credential_id)
    .where(_I.instance_id == bindparam("instance_id"))
)
_LOCK: Final = compile_statement(
    select(_I.instance_id).where(_I.instance_id == bindparam("instance_id")).with_for_update()
)
_ASKED_TO_END: Final = select(
    attempts.c.task_id, attempts.c.attempt_id, attempts.c.epoch, tasks.c.cancel_requested_at
).join_from(attempts, tasks, attempts.c.task_id == tasks.c.task_id)
_CANCELLATIONS: Final = compile_statement(
    _ASKED_TO_END.where(
        attempts.c.instance_id == bindparam("instance_id"), OPEN, tasks.c.cancel_requested_at.is_not(None)
    )
)
_ENDED: Final = compile_statement(
    _ASKED_TO_END.where(
        attempts.c.attempt_id.in_(bindparam("attempt_ids", expanding=True)),
        attempts.c.instance_id == bindparam("instance_id"),
        attempts.c.state == literal_column("'ENDED'"),
    )
)


class _Raced(Exception):
    """Another hello made the instance between our look and our INSERT."""


@dataclass(slots=True)
class KeyWalk:
    """Where a session's next look at keyed tasks begins: after this key of this one of its capabilities."""

    capability: int = 0
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One session of one instance: what the server knows about who is at the other end of a connection."""

    instance_id: str
    revision: int
    queue_id: str
    capacity_max: int
    capabilities: tuple[Capability, ...]
    concurrency_keys: bool
    cancellation_notifications: bool
    key_walk: KeyWalk = field(default_factory=KeyWalk, compare=False)


@dataclass(frozen=True, slots=True)
class Situation:
    """An instance and its queue as their rows have them; `held` counts its attempts that have not ended.

    `alive`: the session was renewed in time, and the credential that opened it has not been revoked since.
    """

    revision: int
    alive: bool
    capacity: int
    drain: bool
    held: int
    paused: bool
    concurrency_limit: int | None
    start_limit: int | None
    start_window_ms: int | None

    @property
    def room(self) -> int:
        """How many tasks the worker may be given now."""
        if not self.alive or self.drain or self.paused:
            return 0
        return max(0, self.capacity - self.held)


async def register(platform: Platform, caller: Caller, hello: Hello) -> tuple[Session, Welcome]:
    """Begin a session of an instance, which is made if it is new. The caller's permissions have been checked.

    Raises ApiError: NOT_FOUND or PERMISSION_DENIED for the queue, INVALID_PROOF for another secret than the
    instance's, IDEMPOTENCY_CONFLICT for other values than its first hello's; and the errors of `LanePool.run`.
    Cancelling leaves open whether the session began; the next hello begins another one.
    """
    await check_queue(platform.pool, caller, hello.queue_id, platform.limits)

    async def work(tx: Transaction) -> tuple[datetime, int, bool]:
        row = await tx.fetch_one(_REGISTRATION, {"instance_id": hello.instance_id})
        if row is None:
            return await _register(tx, platform, caller, hello), 1, False
        now, secret_sha256, credential_id, registration, revision, drain = row
        if not hello.instance_secret.matches(secret_sha256):
            raise ApiError(ErrorCode.INVALID_PROOF, "the instance has another secret")
        if (credential_id, registration) != (caller.credential_id, _digest(hello)):
            raise ApiError(ErrorCode.IDEMPOTENCY_CONFLICT, "the instance said hello before with other values")
        await tx.execute(
            _BEGIN_SESSION,
            {
                "the_instance_id": hello.instance_id,
                "revision": revision + 1,
                "session_until": _until(platform, now),
                "node": platform.node,
                "now": now,
            },
        )
        return now, revision + 1, bool(drain)

    now, revision, drain = await _first_or_next(platform, work)
    platform.wake.notify(instance_key(hello.instance_id))
    session = Session(
        instance_id=hello.instance_id,
        revision=revision,
        queue_id=hello.queue_id,
        capacity_max=hello.capacity,
        capabilities=hello.capabilities,
        concurrency_keys=hello.concurrency_keys,
        cancellation_notifications=hello.cancellation_notifications,
    )
    return session, _welcome(session, now, _until(platform, now), capacity=0, drain=drain)


async def announce(platform: Platform, session: Session, capacity: Capacity) -> Welcome:
    """Set the instance's capacity and renew its session; repeating it changes nothing more.

    Raises ApiError: SESSION_FENCED, STATE_CONFLICT for taking a drain back, INVALID_ARGUMENT for more than the hello
    said; and the errors of `LanePool.run`. Safe to cancel.
    """

    async def work(tx: Transaction) -> datetime:
        row = await tx.fetch_one(_REGISTRATION, {"instance_id": session.instance_id})
        if row is None or row[4] != session.revision:
            raise fenced()
        now: datetime = row[0]
        if row[5] and not capacity.drain:
            raise ApiError(ErrorCode.STATE_CONFLICT, "the instance drains, which is not undone")
        await tx.execute(
            _ANNOUNCE,
            {
                "the_instance_id": session.instance_id,
                "sequence": capacity.sequence,
                "capacity": capacity.capacity,
                "drain": capacity.drain,
                "session_until": _until(platform, now),
                "now": now,
            },
        )
        return now

    if capacity.capacity > session.capacity_max:
        raise ApiError(ErrorCode.INVALID_ARGUMENT, "body.capacity: must not exceed the capacity of the hello")
    now = await platform.pool.run_again(work, budget_s=platform.limits.transaction_s)
    return _welcome(
        session,
        now,
        _until(platform, now),
        capacity=capacity.capacity,
        drain=capacity.drain,
        sequence=capacity.sequence,
    )


async def look(platform: Platform, session: Session) -> Situation:
    """Read the instance's situation without a lock. Raises ApiError SESSION_FENCED; safe to cancel."""

    async def work(tx: Transaction) -> Situation:
        return _situation(session, await tx.fetch_one(_LOOK, {"instance_id": session.instance_id}))

    return await platform.pool.read(work, budget_s=platform.limits.transaction_s)


async def lock(tx: Transaction, session: Session) -> Situation:
    """Lock the instance's row, so that its claims go one by one, and read its situation. Raises SESSION_FENCED.

    In two statements: a count in the locking one would be as of before its wait for the lock.
    """
    await tx.fetch_one(_LOCK, {"instance_id": session.instance_id})
    return _situation(session, await tx.fetch_one(_LOOK, {"instance_id": session.instance_id}))


async def cancellations(
    platform: Platform, session: Session, unstarted: Collection[str]
) -> tuple[list[Cancellation], set[str]]:
    """Read which of the instance's attempts are to end, or ended before their start, as somebody asked for that.

    `unstarted` names attempts that the worker was given and did not start yet; the second part is which of them have
    ended, for whatever reason. Safe to cancel.
    """

    async def work(tx: Transaction) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        running = await tx.fetch(_CANCELLATIONS, {"instance_id": session.instance_id})
        if not unstarted:
            return running, []
        names = {"instance_id": session.instance_id, "attempt_ids": list(unstarted)}
        return running, await tx.fetch(_ENDED, names)

    running, ended = await platform.pool.read(work, budget_s=platform.limits.transaction_s)
    asked = [
        Cancellation(
            task_id=task_id, attempt_id=attempt_id, epoch=epoch, cancel_requested_at=asked_at.replace(tzinfo=UTC)
        )
        for task_id, attempt_id, epoch, asked_at in (*running, *ended)
        if asked_at is not None
    ]
    return asked, {attempt_id for _, attempt_id, _, _ in ended}


def fenced() -> ApiError:
    """The answer to a session that is no longer its instance's newest."""
    return ApiError(ErrorCode.SESSION_FENCED, "a newer session of the instance has begun")


async def _first_or_next(
    platform: Platform, work: Callable[[Transaction], Awaitable[tuple[datetime, int, bool]]]
) -> tuple[datetime, int, bool]:
    try:
        return await platform.pool.run_again(work, budget_s=platform.limits.transaction_s)
    except _Raced:
        # The other first hello of this instance is committed: this one begins the next session.
        return await platform.pool.run_again(work, budget_s=platform.limits.transaction_s)


async def _register(tx: Transaction, platform: Platform, caller: Caller, hello: Hello) -> datetime:
    """Make a new instance with its first session; the database's clock."""
    ((now,),) = await tx.fetch(_CLOCK)
    try:
        await tx.execute(
            _REGISTER,
            {
                "instance_id": hello.instance_id,
                "namespace_id": caller.namespace_id,
                "application_id": caller.application_id,
                "credential_id": caller.credential_id,
                "queue_id": hello.queue_id,
                "secret_sha256": hello.instance_secret.digest(),
                "registration_sha256": _digest(hello),
                "capacity_max": hello.capacity,
                "cancellation_notifications": hello.cancellation_notifications,
                "concurrency_keys": hello.concurrency_keys,
                "revision": 1,
                "session_until": _until(platform, now),
                "node": platform.node,
                "sequence": 0,
                "capacity": 0,
                "drain": False,
                "created_at": now,
                "updated_at": now,
            },
            duplicate_ok=True,
        )
    except DuplicateKey:
        raise _Raced from None
    return cast("datetime", now)


def _situation(session: Session, row: tuple[Any, ...] | None) -> Situation:
    if row is None or row[0] != session.revision:
        raise fenced()
    revision, alive, capacity, drain, held, paused, *limits = row
    return Situation(revision, bool(alive), capacity, bool(drain), held, bool(paused), *limits)


def _digest(hello: Hello) -> str:
    """SHA-256 of what a hello fixes, but the secret; the order of capabilities does not matter."""
    content: strict_json.Value = {
        "queue_id": hello.queue_id,
        "capacity": hello.capacity,
        "capabilities": [dict(one.to_body()) for one in sorted(hello.capabilities)],
        "cancellation_notifications": hello.cancellation_notifications,
        "concurrency_keys": hello.concurrency_keys,
    }
    return hashlib.sha256(strict_json.canonical(content)).hexdigest()


def _until(platform: Platform, now: datetime) -> datetime:
    return now + timedelta(seconds=platform.limits.session_s)


def _welcome(
    session: Session, now: datetime, until: datetime, *, capacity: int, drain: bool, sequence: int | None = None
) -> Welcome:
    return Welcome(
        instance_id=session.instance_id,
        queue_id=session.queue_id,
        revision=session.revision,
        session_until=until.replace(tzinfo=UTC),
        server_time=now.replace(tzinfo=UTC),
        capacity=capacity,
        drain=drain,
        sequence=sequence,
    )

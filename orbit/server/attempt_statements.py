"""The SQL of attempts, their receipts, evidence and permits, compiled once.

Locks are taken in the order that `ledger` gives. Claims and the sweeper skip locked tasks and so never wait for one.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import ColumnClause, and_, bindparam, delete, func, insert, literal_column, select, update
from sqlalchemy.dialects.mysql import insert as upsert

from orbit.mysql.statement import compile_statement
from orbit.server.ledger import NEEDED
from orbit.server.tables import (
    attempts,
    concurrency_permits,
    evidence,
    queue_starts,
    queues,
    tasks,
    worker_instances,
    worker_receipts,
)

_A: Final = attempts.c
_T: Final = tasks.c
NOW: Final[ColumnClause[Any]] = literal_column("UTC_TIMESTAMP(6)")
"""The start of the statement, by the database's clock."""

OPEN: Final = _A.state.in_([literal_column("'LEASED'"), literal_column("'RUNNING'")])
"""Attempts that have not ended, whatever their lease."""

# Commands: the attempt, its task, and the newest session of its instance, which is read without a lock.
_STANDING: Final = (
    *NEEDED,
    _T.state.label("task_state"),
    _T.queue_id,
    _T.recovery_safety,
    _T.retry_initial_delay_ms,
    _T.retry_max_delay_ms,
    _T.attempt_timeout_ms,
    _T.deadline_at,
    _T.latest_start_at,
    _A.attempt_id,
    _A.instance_id,
    _A.epoch,
    _A.state.label("attempt_state"),
    _A.lease_secret_sha256,
    _A.lease_until,
    _A.timeout_at,
    _A.started_at,
    _A.concurrency_key,
    worker_instances.c.revision,
    NOW.label("now"),
)
COLUMNS: Final = tuple(column.key for column in _STANDING)
"""The names of what READ and the LOCK_ statements give."""

_ONE: Final = (
    select(*_STANDING)
    .select_from(tasks)
    .join(attempts, _A.task_id == _T.task_id)
    .join(worker_instances, worker_instances.c.instance_id == _A.instance_id)
    .where(_T.task_id == bindparam("task_id"), _A.attempt_id == bindparam("attempt_id"))
)
READ: Final = compile_statement(_ONE)
LOCK_BOTH: Final = compile_statement(_ONE.with_for_update(of=[tasks, attempts]))
LOCK_ATTEMPT: Final = compile_statement(_ONE.with_for_update(of=attempts))
LOCK_NEWEST: Final = compile_statement(
    select(*_STANDING)
    .select_from(tasks)
    .join(attempts, and_(_A.task_id == _T.task_id, _A.epoch == _T.attempt_count))
    .join(worker_instances, worker_instances.c.instance_id == _A.instance_id)
    .where(_T.task_id == bindparam("task_id"))
    .with_for_update(of=[tasks, attempts])
)
"""The attempt that the task is with, for whoever has the task and not the attempt."""
LOCK_LAPSED: Final = compile_statement(_ONE.with_for_update(of=[tasks, attempts], skip_locked=True))
"""For the sweeper: no row when somebody else is at work on it."""

RECEIPT: Final = compile_statement(
    select(worker_receipts.c.content_sha256, worker_receipts.c.receipt).where(
        worker_receipts.c.attempt_id == bindparam("attempt_id"), worker_receipts.c.message_id == bindparam("message_id")
    )
)
RECEIPT_OF_REPORT: Final = compile_statement(
    select(worker_receipts.c.receipt)
    .where(
        worker_receipts.c.attempt_id == bindparam("attempt_id"),
        worker_receipts.c.report_sha256 == bindparam("report_sha256"),
    )
    # Of those that say APPLIED before those that say EVIDENCE_ONLY: a report may have come too early the first time.
    .order_by(func.json_value(worker_receipts.c.receipt, literal_column("'$.disposition'")))
    .limit(literal_column("1"))
)
INSERT_RECEIPT: Final = compile_statement(
    insert(worker_receipts).values(
        attempt_id=bindparam("attempt_id"),
        message_id=bindparam("message_id"),
        content_sha256=bindparam("content_sha256"),
        report_sha256=bindparam("report_sha256"),
        receipt=bindparam("receipt"),
        created_at=NOW,
    )
)
INSERT_EVIDENCE: Final = compile_statement(insert(evidence))
EVIDENCE_COUNT: Final = compile_statement(
    select(func.count()).select_from(evidence).where(evidence.c.attempt_id == bindparam("attempt_id"))
)

INSERT_ATTEMPT: Final = compile_statement(
    insert(attempts).values(
        {
            name: bindparam(name)
            for name in (
                "attempt_id",
                "task_id",
                "queue_id",
                "instance_id",
                "epoch",
                "state",
                "lease_secret_sha256",
                "node",
                "leased_at",
                "lease_until",
                "concurrency_key",
                "concurrency_token",
            )
        }
    )
)
START_ATTEMPT: Final = compile_statement(
    update(attempts)
    .where(_A.attempt_id == bindparam("the_attempt_id"))
    .values(
        state=literal_column("'RUNNING'"),
        started_at=bindparam("now"),
        timeout_at=bindparam("timeout_at"),
        lease_until=bindparam("lease_until"),
    )
)
RENEW_ATTEMPT: Final = compile_statement(
    update(attempts).where(_A.attempt_id == bindparam("the_attempt_id")).values(lease_until=bindparam("lease_until"))
)
END_ATTEMPT: Final = compile_statement(
    update(attempts)
    .where(_A.attempt_id == bindparam("the_attempt_id"))
    .values(
        {
            "state": literal_column("'ENDED'"),
            **{
                name: bindparam(name)
                for name in (
                    "ended_at",
                    "outcome",
                    "error_code",
                    "result",
                    "retryable",
                    "decision",
                    "delay_ms",
                    "next_available_at",
                )
            },
        }
    )
)

# Permits.
_PERMIT: Final = concurrency_permits.c
_ASKED: Final = upsert(concurrency_permits).values(
    queue_id=bindparam("queue_id"),
    concurrency_key=bindparam("concurrency_key"),
    attempt_id=bindparam("attempt_id"),
    token=literal_column("1"),
    updated_at=NOW,
)
TAKE_PERMIT: Final = compile_statement(
    # Assigned from left to right: the token looks at the holder before this statement.
    _ASKED.on_duplicate_key_update(
        [
            ("token", _PERMIT.token + _PERMIT.attempt_id.is_(None)),
            ("attempt_id", func.coalesce(_PERMIT.attempt_id, _ASKED.inserted.attempt_id)),
            ("updated_at", NOW),
        ]
    )
)
"""Take the permit of a key for an attempt, unless another one holds it; PERMIT says who has it now."""
PERMIT: Final = compile_statement(
    select(_PERMIT.attempt_id, _PERMIT.token).where(
        _PERMIT.queue_id == bindparam("queue_id"), _PERMIT.concurrency_key == bindparam("concurrency_key")
    )
)
RELEASE_PERMIT: Final = compile_statement(
    update(concurrency_permits)
    .where(
        _PERMIT.queue_id == bindparam("the_queue_id"),
        _PERMIT.concurrency_key == bindparam("the_key"),
        _PERMIT.attempt_id == bindparam("the_attempt_id"),
    )
    .values(attempt_id=None, updated_at=NOW)
)

# Starts in a window.
START_LIMIT: Final = compile_statement(
    select(queues.c.start_limit, queues.c.start_window_ms).where(queues.c.queue_id == bindparam("queue_id"))
)
COUNT_START: Final = compile_statement(
    upsert(queue_starts)
    .values(queue_id=bindparam("queue_id"), window_start=bindparam("window_start"), starts=literal_column("1"))
    .on_duplicate_key_update(starts=queue_starts.c.starts + literal_column("1"))
)
STARTS: Final = compile_statement(
    select(queue_starts.c.starts).where(
        queue_starts.c.queue_id == bindparam("queue_id"), queue_starts.c.window_start == bindparam("window_start")
    )
)
FORGET_WINDOWS: Final = compile_statement(
    delete(queue_starts).where(
        and_(queue_starts.c.queue_id == bindparam("queue_id"), queue_starts.c.window_start < bindparam("window_start"))
    )
)

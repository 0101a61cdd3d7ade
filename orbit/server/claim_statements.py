"""The SQL of claims: which tasks may be dispatched next, in which order, and their locks.

The order of dispatch is min(9, priority + waited_s // 30), highest first, then available_at, then task_id (design
section 6). It changes with time, so no index has it. But of two tasks with one capability and one priority the one that
is available for longer is always first. So the first tasks of all are among the first of each capability and priority,
which `ix_tasks_dispatch` holds in order; they are read without locks, put in order, and locked by primary key. What a
claim reads does not grow with the queue.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from sqlalchemy import bindparam, func, literal_column, select
from sqlalchemy.dialects.mysql import insert as upsert

from orbit.mysql.statement import Statement, compile_statement
from orbit.protocol.worker_v1 import Capability
from orbit.server.attempt_statements import NOW, OPEN
from orbit.server.decide.dispatch import AGE_S, PRIORITY_MAX
from orbit.server.ledger import NEEDED
from orbit.server.tables import attempts, concurrency_permits, tasks

GATE: Final = ""
"""Key, which no task can have, of the permit that claims of a queue with a concurrency limit take in turns."""

_T: Final = tasks.c
_NAME: Final = "VARCHAR({length}) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin PATH '$.{name}'"

_FREE: Final = """(concurrency_key IS NULL OR NOT EXISTS (
               SELECT 1 FROM concurrency_permits AS held
                WHERE held.queue_id = tasks.queue_id AND held.concurrency_key = tasks.concurrency_key
                  AND held.attempt_id IS NOT NULL))"""


def _candidates(keys: str) -> Statement:
    # The innermost query reads the index in its order and stops after `first` tasks. It has to name all columns of the
    # index for that: MySQL does not see that values of the outer query are the same for all rows of the inner one.
    return Statement(
        f"""
        SELECT due.task_id
          FROM JSON_TABLE(%s, '$[*]' COLUMNS (
                   handler {_NAME.format(length=128, name="handler")},
                   handler_version {_NAME.format(length=64, name="handler_version")},
                   payload_version {_NAME.format(length=64, name="payload_version")})) AS able
          CROSS JOIN (VALUES {", ".join(f"ROW({one})" for one in range(PRIORITY_MAX + 1))}) AS level (priority)
          CROSS JOIN LATERAL (
               SELECT task_id, priority, available_at
                 FROM tasks FORCE INDEX (ix_tasks_dispatch)
                WHERE queue_id = %s AND state = 'WAITING' AND handler = able.handler
                  AND handler_version = able.handler_version AND payload_version = able.payload_version
                  AND priority = level.priority AND start_before > UTC_TIMESTAMP(6) AND {keys}
                ORDER BY queue_id, state, handler, handler_version, payload_version, priority, available_at, task_id
                LIMIT %s) AS due
         WHERE due.available_at <= UTC_TIMESTAMP(6)
         ORDER BY LEAST({PRIORITY_MAX}, due.priority
                        + TIMESTAMPDIFF(SECOND, due.available_at, UTC_TIMESTAMP(6)) DIV {AGE_S}) DESC,
                  due.available_at, due.task_id
         LIMIT %s
        """,  # noqa: S608 - made of constants
        ("capabilities", "queue_id", "first", "first"),
    )


CANDIDATES: Final = _candidates("concurrency_key IS NULL")
CANDIDATES_WITH_KEYS: Final = _candidates(_FREE)
"""The first tasks for a worker that declared concurrency_keys; those whose key is taken are passed over."""

_CLAIMED: Final = (
    *NEEDED,
    _T.handler,
    _T.handler_version,
    _T.payload_version,
    _T.payload,
    _T.priority,
    _T.attempt_timeout_ms,
    _T.deadline_at,
    _T.latest_start_at,
    _T.concurrency_key,
    _T.retry_of,
    NOW.label("now"),
)
COLUMNS: Final = tuple(column.key for column in _CLAIMED)
"""The names of what LOCK_TASKS gives."""
LOCK_TASKS: Final = compile_statement(
    select(*_CLAIMED)
    .with_hint(tasks, "FORCE INDEX (PRIMARY)", "mysql")
    .where(
        _T.task_id.in_(bindparam("task_ids", expanding=True)),
        _T.queue_id == bindparam("queue_id"),
        _T.state == literal_column("'WAITING'"),
        _T.available_at <= NOW,
        _T.start_before > NOW,
        _T.cancel_requested_at.is_(None),
    )
    .with_for_update(skip_locked=True)
)
"""Those candidates that are still to be had, locked; what somebody else is at is left to him."""

ENTER_GATE: Final = compile_statement(
    upsert(concurrency_permits)
    .values(
        queue_id=bindparam("queue_id"),
        concurrency_key=literal_column(f"'{GATE}'"),
        attempt_id=None,
        token=literal_column("1"),
        updated_at=NOW,
    )
    .on_duplicate_key_update(updated_at=NOW)
)
OPEN_IN_QUEUE: Final = compile_statement(
    select(
        func.count(),
        func.coalesce(func.sum(attempts.c.state == literal_column("'LEASED'")), literal_column("0")),
    ).where(attempts.c.queue_id == bindparam("queue_id"), OPEN)
)
"""How many attempts of the queue have not ended, and how many of these have not started."""
SETTLE: Final = compile_statement(
    select(attempts.c.attempt_id)
    .where(attempts.c.attempt_id.in_(bindparam("attempt_ids", expanding=True)))
    .with_for_update(read=True)
)
"""Which attempts a COMMIT without an answer has made: waits for a transaction that is still at it."""


def capabilities_text(capabilities: Iterable[Capability]) -> str:
    """The parameter `capabilities`."""
    return json.dumps([one.to_body() for one in capabilities])

"""The SQL of claims: which tasks may be dispatched next, in which order, and their locks.

The order of dispatch is min(9, priority + waited_s // 30), highest first, then available_at, then task_id (design
section 6). It changes with time, so no index has it. But of two tasks with one capability, one key and one priority the
one that is available for longer is always first. So the first of all tasks without a key are among the first of each
capability and priority, which `ix_tasks_dispatch` holds in order; they are read without locks, put in order, and locked
by primary key. Tasks with a key lie behind them in that index, key by key. They are read a page at a time; a page that
ends within a key's tasks is followed by the head of each of that key's priorities, and the next one begins with the
next key. So neither look grows with the queue, nor with the tasks that wait for one key (`services.candidates`).

Both looks pass over tasks that came too late to start, as many as nobody has swept yet.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from sqlalchemy import and_, bindparam, func, literal_column, select
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

_ORDER: Final = "queue_id, state, handler, handler_version, payload_version, concurrency_key, priority, available_at"
_ABLE: Final = f"""JSON_TABLE(%s, '$[*]' COLUMNS (
                   number FOR ORDINALITY,
                   handler {_NAME.format(length=128, name="handler")},
                   handler_version {_NAME.format(length=64, name="handler_version")},
                   payload_version {_NAME.format(length=64, name="payload_version")},
                   concurrency_key {_NAME.format(length=128, name="concurrency_key")})) AS able"""
_WAITING: Final = """queue_id = %s AND state = 'WAITING' AND handler = able.handler
                  AND handler_version = able.handler_version AND payload_version = able.payload_version"""
_RANK: Final = f"LEAST({PRIORITY_MAX}, priority + TIMESTAMPDIFF(SECOND, available_at, UTC_TIMESTAMP(6)) DIV {AGE_S})"


def _heads(key: str) -> Statement:
    # The innermost query reads the index in its order and stops after `first` tasks. It has to name all columns of the
    # index for that: MySQL does not see that values of the outer query are the same for all rows of the inner one.
    return Statement(
        f"""
        SELECT {_RANK} AS place, due.available_at, due.task_id, due.concurrency_key
          FROM {_ABLE}
          CROSS JOIN (VALUES {", ".join(f"ROW({one})" for one in range(PRIORITY_MAX + 1))}) AS level (number)
          CROSS JOIN LATERAL (
               SELECT task_id, priority, available_at, concurrency_key
                 FROM tasks FORCE INDEX (ix_tasks_dispatch)
                WHERE {_WAITING} AND concurrency_key {key} AND priority = level.number
                  AND start_before > UTC_TIMESTAMP(6)
                ORDER BY {_ORDER}, task_id
                LIMIT %s) AS due
         WHERE due.available_at <= UTC_TIMESTAMP(6)
         ORDER BY place DESC, due.available_at, due.task_id
         LIMIT %s
        """,  # noqa: S608 - made of constants
        ("capabilities", "queue_id", "first", "count"),
    )


CANDIDATES: Final = _heads("IS NULL")
"""The first tasks without a key; all looks give rank, available_at, task_id and key."""
HEADS: Final = _heads("= able.concurrency_key")
"""The first tasks of some keys, each of which comes with its capability."""
LAST_KEYS: Final = Statement(
    f"""
    SELECT able.number - 1,
           (SELECT concurrency_key FROM tasks FORCE INDEX (ix_tasks_dispatch) WHERE {_WAITING}
             ORDER BY {", ".join(f"{one} DESC" for one in _ORDER.split(", "))} LIMIT 1)
      FROM {_ABLE}
     ORDER BY able.number
    """,  # noqa: S608 - made of constants
    ("queue_id", "capabilities"),
)
"""The last key for which tasks of each capability wait: NULL where none waits."""
KEYED_PAGE: Final = Statement(
    f"""
    WITH page AS (
         SELECT task_id, concurrency_key, priority, available_at, start_before
           FROM tasks FORCE INDEX (ix_tasks_dispatch)
          WHERE queue_id = %s AND state = 'WAITING' AND handler = %s AND handler_version = %s AND payload_version = %s
            AND concurrency_key > %s
          ORDER BY {_ORDER}, task_id
          LIMIT %s),
         found AS (
         SELECT page.*, {_RANK} AS place,
                EXISTS (SELECT 1 FROM concurrency_permits AS held
                         WHERE held.queue_id = %s AND held.concurrency_key = page.concurrency_key
                           AND held.attempt_id IS NOT NULL) AS taken
           FROM page),
         ready AS (
         SELECT found.*, ROW_NUMBER() OVER (
                    PARTITION BY concurrency_key ORDER BY place DESC, available_at, task_id) AS turn
           FROM found
          WHERE NOT taken AND available_at <= UTC_TIMESTAMP(6) AND start_before > UTC_TIMESTAMP(6))
    (SELECT place, available_at, task_id, concurrency_key FROM ready WHERE turn = 1
      ORDER BY place DESC, available_at, task_id LIMIT %s)
    UNION ALL
    (SELECT COUNT(*) OVER (), NULL, IF(taken, 'taken', 'free'), concurrency_key
       FROM found ORDER BY concurrency_key DESC LIMIT 1)
    """,  # noqa: S608 - made of constants
    (
        *("queue_id", "handler", "handler_version", "payload_version", "after", "page", "queue_id"),
        "count",
    ),
)
"""The first task of each free key of a page of one capability's keyed tasks.

One more row, without a time, says how many tasks the page has, which key is its last, and whether that is taken.
"""

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
        func.coalesce(
            func.sum(and_(attempts.c.state == literal_column("'LEASED'"), attempts.c.leased_at >= bindparam("since"))),
            literal_column("0"),
        ),
    ).where(attempts.c.queue_id == bindparam("queue_id"), OPEN)
)
"""How many attempts of the queue have not ended; how many of these were leased since a time and have not started."""
SETTLE: Final = compile_statement(
    select(attempts.c.attempt_id)
    .where(attempts.c.attempt_id.in_(bindparam("attempt_ids", expanding=True)))
    .with_for_update(read=True)
)
"""Which attempts a COMMIT without an answer has made: waits for a transaction that is still at it."""


def capabilities_text(capabilities: Iterable[Capability]) -> str:
    """The parameter `capabilities`."""
    return json.dumps([one.to_body() for one in capabilities])


def heads_text(keys: Iterable[tuple[Capability, str]]) -> str:
    """The parameter `capabilities` of HEADS."""
    return json.dumps([{**one.to_body(), "concurrency_key": key} for one, key in keys])

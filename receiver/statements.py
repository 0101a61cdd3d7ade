"""Every statement of the receiver at run time, compiled once; and what the view's upsert answers."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

from sqlalchemy import Column, ColumnElement, Table, and_, bindparam, case, func, literal_column, select, update
from sqlalchemy.dialects.mysql import insert

from orbit.mysql.statement import compile_statement
from receiver.schema import receiver_inbox, receiver_task_views


class Verdict(IntEnum):
    """What the guarded upsert of a view found, brought home as the insert id of its OK packet.

    The number of affected rows cannot tell these apart: it is the same for an inserted and for an unchanged row.
    """

    FRESH = 0
    """There was no row; it is there now."""
    ADVANCED = 1
    """The row had a lower version; it has this one now."""
    STALE = 2
    """The row has a higher version; unchanged."""
    REPEATED = 3
    """The row has this version from this very event; unchanged."""
    CLASH = 4
    """The row has this version from another event; unchanged."""


_NOW: Final[ColumnElement[Any]] = func.utc_timestamp(literal_column("6"))


def _bound(table: Table, *names: str) -> dict[str, ColumnElement[Any]]:
    return {name: bindparam(name, type_=table.c[name].type, required=True) for name in names}


def _key(table: Table, *names: str) -> ColumnElement[bool]:
    return and_(*(table.c[name] == bound for name, bound in _bound(table, *names).items()))


def _number(verdict: Verdict) -> ColumnElement[int]:
    # A constant of the text: the statement's parameters are the row's values and nothing else.
    return literal_column(str(verdict.value))


_INBOX_KEY: Final = ("consumer_name", "queue_id", "event_id")
_VIEW_KEY: Final = ("consumer_name", "queue_id", "task_id")
_views: Final = receiver_task_views.c

INSERT_INBOX: Final = compile_statement(
    insert(receiver_inbox).values(
        **_bound(receiver_inbox, *_INBOX_KEY, "event", "event_sha256"),
        applied=literal_column("1"),
        accepted_at=_NOW,
    )
)
"""Claim the event. A duplicate key here, and only here, means that it was recorded before."""

_upsert: Final = insert(receiver_task_views).values(
    **_bound(receiver_task_views, *_VIEW_KEY, "task_version", "last_event_id", "state", "result"),
    applied_events=literal_column("1"),
    created_at=_NOW,
    updated_at=_NOW,
)
_new: Final = _upsert.inserted
_advances: Final = _new.task_version > _views.task_version
_verdict: Final = func.last_insert_id(
    case(
        (_advances, _number(Verdict.ADVANCED)),
        (_new.task_version < _views.task_version, _number(Verdict.STALE)),
        (_new.last_event_id == _views.last_event_id, _number(Verdict.REPEATED)),
        else_=_number(Verdict.CLASH),
    )
)


def _if_advances(column: Column[Any]) -> ColumnElement[Any]:
    return case((_advances, _new[column.name]), else_=column)


UPSERT_VIEW: Final = compile_statement(
    # MySQL assigns from left to right and later expressions see the new values. So the verdict comes first, while the
    # row is as it was, and the version that every other column is guarded by comes last.
    _upsert.on_duplicate_key_update(
        [
            ("applied_events", _views.applied_events + (_verdict == _number(Verdict.ADVANCED))),
            ("last_event_id", _if_advances(_views.last_event_id)),
            ("state", _if_advances(_views.state)),
            ("result", _if_advances(_views.result)),
            ("updated_at", _if_advances(_views.updated_at)),
            ("task_version", _if_advances(_views.task_version)),
        ]
    )
)
"""Create the view or advance it to a higher version; answers with a Verdict."""

MARK_STALE: Final = compile_statement(
    update(receiver_inbox).where(_key(receiver_inbox, *_INBOX_KEY)).values(applied=literal_column("0"))
)
"""Note that this event did not advance the view."""

SELECT_RECORDED: Final = compile_statement(
    select(receiver_inbox.c.event_sha256, receiver_inbox.c.applied).where(_key(receiver_inbox, *_INBOX_KEY))
)
"""What was recorded under this identity: digest, applied."""

SELECT_VIEW: Final = compile_statement(
    select(_views.state, _views.task_version, _views.last_event_id, _views.applied_events).where(
        _key(receiver_task_views, *_VIEW_KEY)
    )
)
"""A task's view without its result: state, version, last event, number of events applied."""

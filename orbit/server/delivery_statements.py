"""The SQL of deliveries, compiled once.

Locks are taken in one order: a subscription's row, then rows of `deliveries` by `delivery_no`. Claims and the sweeper
skip locked rows and so never wait for a delivery; claims of one subscription wait for each other at its row, on every
node, and that is what makes its window exact.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

from sqlalchemy import ColumnClause, Select, bindparam, func, literal_column, null, select, text, union_all, update

from orbit.mysql.statement import Statement, compile_statement
from orbit.protocol.http_v1 import DeliveryState
from orbit.server.decide.delivery import TRANSITIONS, Facts, Step
from orbit.server.tables import deliveries, events, subscriptions

_D: Final = deliveries.c
NOW: Final[ColumnClause[Any]] = literal_column("UTC_TIMESTAMP(6)")
"""The start of the statement, by the database's clock."""

DIGEST_LENGTH: Final = 64


def _chosen() -> Any:
    return _D.delivery_no.in_(bindparam("delivery_nos", expanding=True))


def _state(state: DeliveryState) -> Any:
    return literal_column(f"'{state.value}'")


# These read few rows in an index's order. Where most of the table is one subscription's, MySQL would rather start on
# the primary key, and then read past rows of others.
_BY_CLAIM: Final = "FORCE INDEX (ix_deliveries_claim)"

# Claiming.
LOCK_SUBSCRIPTION: Final = compile_statement(
    select(subscriptions.c.enabled, subscriptions.c.window_size)
    .where(subscriptions.c.subscription_id == bindparam("subscription_id"))
    .with_for_update()
)
"""First statement of a claim. What the following ones see was committed before they start, so nothing of an earlier
claim of the subscription is missed."""

TRIED: Final = "tried"
UNTRIED: Final = "untried"
IN_WINDOW: Final = "in_window"
KINDS: Final = (TRIED, UNTRIED, IN_WINDOW)


def _candidates(kind: str, in_window: int) -> Select[Any]:
    return (
        select(literal_column(f"'{kind}'").label("kind"), _D.delivery_no)
        .where(
            _D.subscription_id == bindparam("subscription_id"),
            _D.in_window == literal_column(str(in_window)),
            _D.state == _state(DeliveryState.PENDING),
        )
        .with_hint(deliveries, _BY_CLAIM, "mysql")
        .order_by(_D.delivery_no)
        .limit(bindparam("room"))
        .with_for_update(skip_locked=True)
    )


CLAIMABLE: Final = compile_statement(
    union_all(
        _candidates(TRIED, 1),
        _candidates(UNTRIED, 0),
        select(literal_column(f"'{IN_WINDOW}'"), func.count())
        .with_hint(deliveries, _BY_CLAIM, "mysql")
        .where(_D.subscription_id == bindparam("subscription_id"), _D.in_window == literal_column("1")),
    )
)
"""Rows (kind, number): the oldest pending deliveries of both kinds, locked, and one row with the window's count. All
three parts read nothing but `ix_deliveries_claim`. The count sees locked rows as well. Only claims make it grow."""

LEASE: Final = compile_statement(
    update(deliveries)
    .where(_chosen())
    .values(
        {
            _D.state: _state(TRANSITIONS[DeliveryState.PENDING, Step.LEASE]),
            _D.attempts: _D.attempts + literal_column("1"),
            _D.epoch: _D.epoch + literal_column("1"),
            # The digest at the delivery's place in the list: one statement for a batch of any size.
            _D.lease_secret_sha256: func.substring(
                bindparam("digests"),
                literal_column(str(DIGEST_LENGTH)) * func.find_in_set(_D.delivery_no, bindparam("places"))
                - literal_column(str(DIGEST_LENGTH - 1)),
                literal_column(str(DIGEST_LENGTH)),
            ),
            _D.lease_until: func.timestampadd(text("MICROSECOND"), bindparam("lease_us"), NOW),
            _D.updated_at: NOW,
        }
    )
)
"""`places` is the list of numbers as text with commas, `digests` their secrets' digests one after the other."""

LEASED: Final = compile_statement(
    select(
        _D.delivery_no,
        _D.delivery_id,
        _D.epoch,
        _D.attempts,
        _D.attempt_budget,
        _D.lease_until,
        NOW,
        events.c.event,
    )
    .join_from(deliveries, events, _D.event_id == events.c.event_id)
    .where(_chosen())
    .order_by(_D.delivery_no)
)

# Proofs, sweeping, grants.
FIND: Final = compile_statement(
    select(_D.delivery_id, _D.delivery_no).where(_D.delivery_id.in_(bindparam("delivery_ids", expanding=True)))
)
"""Public names to numbers, without a lock: `uq_deliveries_id` holds both."""

_FACTS: Final = (
    NOW,
    _D.delivery_id,
    _D.delivery_no,
    _D.subscription_id,
    _D.state,
    _D.attempts,
    _D.attempt_budget,
    _D.epoch,
    _D.lease_secret_sha256,
    _D.lease_until,
    _D.acked_at,
)
LOCK: Final = compile_statement(select(*_FACTS).where(_chosen()).order_by(_D.delivery_no).with_for_update())
"""The rows of `facts_of`, locked by number."""

ACKNOWLEDGE: Final = compile_statement(
    update(deliveries)
    .where(_chosen())
    .values(
        {
            _D.state: _state(DeliveryState.ACKED),
            _D.acked_at: bindparam("now"),
            _D.updated_at: bindparam("now"),
        }
    )
)
GIVE_BACK: Final = compile_statement(
    update(deliveries)
    .where(_chosen())
    .values(
        {
            _D.state: _state(DeliveryState.PENDING),
            _D.attempts: _D.attempts - literal_column("1"),
            _D.lease_until: null(),
            _D.updated_at: bindparam("now"),
        }
    )
)
LEASE_OVER: Final = compile_statement(
    select(_D.delivery_no, _D.subscription_id, _D.attempts, _D.attempt_budget)
    .where(_D.state == _state(DeliveryState.LEASED), _D.lease_until <= NOW)
    .with_hint(deliveries, "FORCE INDEX (ix_deliveries_lease)", "mysql")
    .order_by(_D.lease_until)
    .limit(bindparam("batch"))
    .with_for_update(skip_locked=True)
)
"""Deliveries whose lease ran out, those that wait longest first, locked; reads `ix_deliveries_lease` in its order."""


@cache
def end_lease(step: Step) -> Statement:
    """The UPDATE for deliveries whose lease ran out: LAPSE or EXPIRE. Secret and end stay, for a late ACK."""
    return compile_statement(
        update(deliveries)
        .where(_chosen())
        .values({_D.state: _state(TRANSITIONS[DeliveryState.LEASED, step]), _D.updated_at: NOW})
    )


GRANT: Final = compile_statement(
    update(deliveries)
    .where(_D.delivery_no == bindparam("number"))
    .values({_D.state: bindparam("new_state"), _D.attempt_budget: bindparam("budget"), _D.updated_at: NOW})
)

# Looking.
_SHOWN: Final = (
    _D.delivery_no,
    _D.delivery_id,
    _D.subscription_id,
    _D.event_id,
    _D.state,
    _D.attempts,
    _D.attempt_budget,
    _D.epoch,
    _D.lease_until,
    _D.acked_at,
    _D.created_at,
    _D.updated_at,
)
SHOW: Final = compile_statement(
    select(subscriptions.c.namespace_id, subscriptions.c.application_id, subscriptions.c.queue_id, *_SHOWN)
    .join_from(deliveries, subscriptions, _D.subscription_id == subscriptions.c.subscription_id)
    .where(_D.delivery_id == bindparam("delivery_id"))
)
"""One delivery behind the three names of its owner."""

# Where deliveries of each state stand in ix_deliveries_claim: (in_window, state), each ordered by number.
_GROUPS: Final = (
    (0, DeliveryState.PENDING),
    (1, DeliveryState.PENDING),
    (1, DeliveryState.LEASED),
    (1, DeliveryState.EXPIRED),
    (0, DeliveryState.ACKED),
)


PLACE: Final = compile_statement(
    select(_D.delivery_no).where(
        _D.delivery_id == bindparam("delivery_id"), _D.subscription_id == bindparam("subscription_id")
    )
)
CLOCK: Final = compile_statement(select(NOW))


def _page() -> Statement:
    """Merge the groups instead of sorting a subscription's whole history: each reads at most a page from its index."""
    parts = [
        select(*_SHOWN)
        .where(
            _D.subscription_id == bindparam("subscription_id"),
            _D.in_window == literal_column(str(in_window)),
            _D.state == _state(state),
            _D.delivery_no > bindparam("after"),
        )
        .with_hint(deliveries, _BY_CLAIM, "mysql")
        .order_by(_D.delivery_no)
        .limit(bindparam("page"))
        for in_window, state in _GROUPS
    ]
    return compile_statement(union_all(*parts).order_by(text("delivery_no")).limit(bindparam("page")))


PAGE: Final = _page()


def _aware(moment: datetime | None) -> datetime | None:
    """A time of the database with its zone, which is UTC."""
    return None if moment is None else moment.replace(tzinfo=UTC)


def facts_of(row: tuple[Any, ...]) -> tuple[str, Facts]:
    """A delivery's public name and its facts, from a row of `LOCK`."""
    now, delivery_id, number, subscription_id, state, attempts, budget, epoch, digest, lease_until, acked_at = row
    return delivery_id, Facts(
        now=now.replace(tzinfo=UTC),
        delivery_no=number,
        subscription_id=subscription_id,
        state=DeliveryState(state),
        attempts=attempts,
        attempt_budget=budget,
        epoch=epoch,
        lease_secret_sha256=digest,
        lease_until=_aware(lease_until),
        acked_at=_aware(acked_at),
    )

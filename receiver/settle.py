"""Apply one event until its fate is known, inside its lease. The loop round `Store.apply`; `policy` decides."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Final

from orbit.mysql.errors import CommitUnconfirmed, Kind, NotCommitted
from orbit.runtime.logs import get_logger
from receiver.outcome import Outcome
from receiver.policy import Again, Pause, after, call_budget

if TYPE_CHECKING:
    from orbit.protocol.event import Event
    from receiver.outcome import Applied
    from receiver.store import Store

_log: Final = get_logger(__name__)


class Undecided(Exception):
    """The event is not known to be recorded, and is not tried again under this lease.

    `outcome` is unconfirmed when a COMMIT of any try got no answer, invalid when the database refuses these very
    values, else unavailable. `pause` says that the database as a whole cannot be used.
    """

    def __init__(self, failure: CommitUnconfirmed | NotCommitted, outcome: Outcome, *, pause: bool) -> None:
        super().__init__(failure, outcome, pause)
        self.failure = failure
        self.outcome = outcome
        self.pause = pause

    def __str__(self) -> str:
        return f"{self.outcome}: {self.failure}"


async def settle(
    store: Store,
    event: Event,
    *,
    lease_until: float,
    draining: asyncio.Event,
    limit_until: float = float("inf"),
) -> Applied:
    """Call `store.apply` until the event is in the inbox, committed.

    `lease_until` and `limit_until` (the caller's own limit) are times of the monotonic clock; no call goes past them or
    takes more than 5 s. `draining` cuts the waits between calls, not a call.

    Raises EventRefused and Undecided. Safe to cancel: see `Store.apply`.
    """
    tries = 0
    in_doubt = False
    while True:
        now = time.monotonic()
        tries += 1
        try:
            return await store.apply(
                event, budget_s=call_budget(budget_left_s=limit_until - now, lease_left_s=lease_until - now)
            )
        except CommitUnconfirmed as error:
            failure: CommitUnconfirmed | NotCommitted = error
            in_doubt = True
        except NotCommitted as error:
            failure = error
        now = time.monotonic()
        decision = after(
            failure.kind,
            tries=tries,
            budget_left_s=limit_until - now,
            lease_left_s=lease_until - now,
            draining=draining.is_set(),
            jitter=random.random(),  # noqa: S311 - spreads retries, guards nothing
        )
        outcome = _outcome(failure, in_doubt=in_doubt)
        if not isinstance(decision, Again):
            raise Undecided(failure, outcome, pause=isinstance(decision, Pause))
        _log.warning(
            "event tried again",
            outcome=str(outcome),
            event_id=event.event_id,
            tries=tries,
            failure=type(failure).__name__,
            errno=failure.errno,
            kind=str(failure.kind),
            reason=failure.reason or None,
            delay_s=round(decision.delay_s, 3),
        )
        if await _drained_within(draining, decision.delay_s):
            raise Undecided(failure, outcome, pause=False)


def _outcome(failure: CommitUnconfirmed | NotCommitted, *, in_doubt: bool) -> Outcome:
    # Once a COMMIT is in doubt, a later failure certainly did not record the event, but does not end the doubt.
    if in_doubt:
        return Outcome.UNCONFIRMED
    return Outcome.INVALID if failure.kind is Kind.DATA else Outcome.UNAVAILABLE


async def _drained_within(draining: asyncio.Event, delay_s: float) -> bool:
    try:
        async with asyncio.timeout(delay_s):
            await draining.wait()
    except TimeoutError:
        return False
    return True

"""The sweeper: ends the leases that ran out, of deliveries and of attempts, and the tasks that waited too long.

Every node runs one; locked rows are skipped, so they share the work.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from orbit.mysql.errors import DatabaseError
from orbit.runtime.logs import get_logger
from orbit.runtime.signals import Signal
from orbit.server import delivery_statements as sql
from orbit.server.decide.delivery import Step, lease_over
from orbit.server.services import expiry
from orbit.server.wake import subscription_key

if TYPE_CHECKING:
    from orbit.mysql.transaction import Transaction
    from orbit.server.parts import Platform

_log = get_logger(__name__)


class Sweeper:
    """One node's sweeper. `swept` fires after each pass with its `count`.

    `draw` gives a number in [0, 1) for the pause between passes, which is between half and one and a half times
    `Limits.node_poll_s`: nodes that started together do not stay together.
    """

    def __init__(self, platform: Platform, *, draw: Callable[[], float] | None = None) -> None:
        self._platform = platform
        # Numbers of its own: those of the module belong to the process.
        self._draw = draw or random.Random().random  # noqa: S311 - spreads passes, guards nothing
        self._failing = False
        self.swept = Signal("swept")

    async def run(self) -> None:
        """Sweep until cancelled, which is safe at any time. A database that fails is tried again at the next pass."""
        while True:
            try:
                count = await self.sweep_once()
            except DatabaseError as error:
                # Once for each outage: the pass repeats twice a second.
                if not self._failing:
                    _log.warning("sweeping fails", error=type(error).__name__, errno=error.errno, kind=error.kind)
                self._failing = True
            else:
                if self._failing:
                    _log.info("sweeping works again")
                self._failing = False
                self.swept.fire(count=count)
            await asyncio.sleep((0.5 + self._draw()) * self._platform.limits.node_poll_s)

    async def sweep_once(self) -> int:
        """End all that is over now and wake who waits for it; give how many ends there were.

        Deliveries are done in transactions of at most `Limits.delivery_batch` rows, the rest one by one. Raises the
        errors of `LanePool.run`; after CommitUnconfirmed the next pass finds what is left to do. Safe to cancel.
        """
        count = await self._sweep_deliveries()
        count += await expiry.end_leases(self._platform)
        return count + await expiry.end_overdue(self._platform)

    async def _sweep_deliveries(self) -> int:
        limits = self._platform.limits
        count = 0
        while True:
            swept = await self._platform.pool.run_again(self._batch, budget_s=limits.transaction_s)
            for subscription_id in set(swept):
                self._platform.wake.notify(subscription_key(subscription_id))
            count += len(swept)
            if len(swept) < limits.delivery_batch:
                return count

    async def _batch(self, tx: Transaction) -> list[str]:
        """End one batch of leases; the subscriptions, one for each delivery."""
        rows = await tx.fetch(sql.LEASE_OVER, {"batch": self._platform.limits.delivery_batch})
        steps = {number: lease_over(attempts, budget) for number, _, attempts, budget in rows}
        for step in (Step.LAPSE, Step.EXPIRE):
            numbers = sorted(number for number, one in steps.items() if one is step)
            if numbers:
                await tx.execute(sql.end_lease(step), {"delivery_nos": numbers})
        return [subscription_id for _, subscription_id, _, _ in rows]

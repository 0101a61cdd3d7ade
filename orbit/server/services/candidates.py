"""Look for the tasks that a worker could do next, without locks.

Tasks without a key are looked at in their order. Tasks with a key are looked at in the order of their keys, in at most
PAGES pages of PAGE tasks in a look, from where the session's last look stopped and round. So a look costs the same
however many tasks wait behind a key that is taken, and each key has its turn. What was looked at is then put in the
order of dispatch. That is the order of all tasks when one look goes all the way round; when it does not, tasks of keys
that it did not come to may be passed over until a later look of the session, which comes soon.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from orbit.server import claim_statements

if TYPE_CHECKING:
    from datetime import datetime

    from orbit.mysql.transaction import Transaction
    from orbit.protocol.worker_v1 import Capability
    from orbit.server.parts import Platform
    from orbit.server.services.workers import KeyWalk, Session

PAGE: Final = 64
PAGES: Final = 8


class _Found(NamedTuple):
    rank: int
    available_at: datetime
    task_id: str
    key: str | None


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tasks in their order. `whole`: nothing that could be dispatched was left unseen but for their number."""

    task_ids: Sequence[str]
    whole: bool = True


async def look(platform: Platform, session: Session, count: int) -> Candidates:
    """Find the first `count` tasks that the session's worker could do, of a key one. Raises as `LanePool.read`.

    Cancelling is safe: the keys that it came to have their turn again in the next round.
    """

    async def work(tx: Transaction) -> Candidates:
        parameters: dict[str, str | int] = {
            "capabilities": claim_statements.capabilities_text(session.capabilities),
            "queue_id": session.queue_id,
            "first": count,
            "count": count,
        }
        found = [_Found(*row) for row in await tx.fetch(claim_statements.CANDIDATES, parameters)]
        if not session.concurrency_keys:
            return Candidates([one.task_id for one in found])
        keyed = _Keyed(tx, session, count)
        whole = await keyed.walk()
        return Candidates(_first(found + keyed.found, count), whole)

    return await platform.pool.read(work, budget_s=platform.limits.transaction_s)


def stretches(walk: KeyWalk, last: dict[int, str]) -> list[tuple[int, str, str]]:
    """Capability, key after which to begin, and last key of each stretch of a way round that begins at `walk`.

    `last` has the last key of each capability, by its number, in order.
    """
    ahead = [(one, walk.key if one == walk.capability else "", end) for one, end in last.items()]
    way = [one for one in ahead if one[0] >= walk.capability] + [one for one in ahead if one[0] < walk.capability]
    if walk.capability in last:
        way.append((walk.capability, "", min(walk.key, last[walk.capability])))
    return [(number, after, end) for number, after, end in way if after < end]


def _first(found: list[_Found], count: int) -> list[str]:
    """The first `count` tasks, of each key only the first one: the others wait for its end."""
    first: list[str] = []
    keys: set[str] = set()
    for one in sorted(found, key=lambda one: (-one.rank, one.available_at, one.task_id)):
        if one.key is None or one.key not in keys:
            first.append(one.task_id)
        if one.key is not None:
            keys.add(one.key)
    return first[:count]


class _Keyed:
    """One look at keyed tasks."""

    def __init__(self, tx: Transaction, session: Session, count: int) -> None:
        self._tx = tx
        self._session = session
        self._count = count
        self._cut: list[tuple[Capability, str]] = []
        self.found: list[_Found] = []

    async def walk(self) -> bool:
        """Go on from where the session's last look stopped; whether that went all the way round."""
        whole = await self._pages()
        if self._cut:
            parameters: dict[str, str | int] = {
                "capabilities": claim_statements.heads_text(self._cut),
                "queue_id": self._session.queue_id,
                "first": 1,
                "count": self._count,
            }
            self.found += [_Found(*row) for row in await self._tx.fetch(claim_statements.HEADS, parameters)]
        return whole

    async def _pages(self) -> bool:
        walk, capabilities = self._session.key_walk, self._session.capabilities
        last = await self._tx.fetch(
            claim_statements.LAST_KEYS,
            {
                "capabilities": claim_statements.capabilities_text(capabilities),
                "queue_id": self._session.queue_id,
            },
        )
        left = PAGES
        for number, after, end in stretches(walk, {number: key for number, key in last if key is not None}):
            key = after
            while key < end:
                if left == 0:
                    walk.capability, walk.key = number, key
                    return False
                left -= 1
                key = await self._page(capabilities[number], key) or end
        return True

    async def _page(self, capability: Capability, after: str) -> str | None:
        """Read one page; the key after which the next one begins, or None when there is none."""
        rows = await self._tx.fetch(
            claim_statements.KEYED_PAGE,
            {
                "queue_id": self._session.queue_id,
                "handler": capability.handler,
                "handler_version": capability.handler_version,
                "payload_version": capability.payload_version,
                "after": after,
                "page": PAGE,
                "count": self._count,
            },
        )
        tasks, standing, last = 0, "", ""
        for rank, available_at, task_id, key in rows:
            if available_at is None:
                tasks, standing, last = rank, task_id, key
            else:
                self.found.append(_Found(rank, available_at, task_id, key))
        if tasks < PAGE:
            return None
        if standing == "free":
            # More of this key's tasks may lie behind the page, and those of its higher priorities do.
            self._cut.append((capability, last))
        return last

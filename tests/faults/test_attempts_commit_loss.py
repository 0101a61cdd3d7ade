"""The COMMITs behind workers' commands, claims and the sweeper, whose answers are lost or which are lost themselves."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from orbit.mysql.errors import CommitUnconfirmed
from orbit.mysql.pool import LanePool
from orbit.mysql.times import LaneTimes
from orbit.protocol.attempt_v1 import Disposition, Outcome
from orbit.protocol.limits import Limits
from orbit.protocol.values import new_id
from orbit.server.parts import Platform
from orbit.server.wake import Wake
from tests.support.deliveries import fresh_platform
from tests.support.workshop import Workshop
from toxiproxy import CutAfterCommit, CutBeforeCommit, DropCommitOk, End, MySQLProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from orbit.mysql.dsn import DSN
    from orbit.protocol.attempt_v1 import Attempt, CommandResult
    from orbit.sandbox import MySQLServer
    from tests.support.workshop import Hand
    from toxiproxy.faults import Fault

RETRIES = {"max_attempts": 3, "initial_delay_ms": 1, "max_delay_ms": 1}
IMPATIENT = LaneTimes(statement_s=1.5, commit_s=0.5, row_lock_s=1)
FAULTS: dict[str, Callable[[], Fault]] = {
    "the OK is lost": lambda: DropCommitOk(End.RST),
    "the link goes dark after COMMIT": lambda: DropCommitOk(End.SILENCE),
    "COMMIT is lost": lambda: CutBeforeCommit(End.RST),
    "the client is cut off": lambda: CutAfterCommit(End.RST),
}
EVERY = pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())


@pytest.fixture(scope="module")
def dsn(mysql: MySQLServer) -> Iterator[DSN]:
    """A platform without any node but the test's own."""
    with fresh_platform(mysql) as fresh:
        yield fresh


@asynccontextmanager
async def proxied(dsn: DSN) -> AsyncIterator[tuple[MySQLProxy, Workshop]]:
    """A queue of the test's own, seen through a node whose every connection goes through a proxy."""
    async with MySQLProxy(*dsn.hosts[0]) as proxy:
        pool = LanePool(dsn.with_host("127.0.0.1", proxy.port), 2, IMPATIENT, name="proxied")
        platform = Platform(pool, Wake(), Limits(transaction_s=2.5))
        try:
            yield proxy, await Workshop.open(platform, dsn)
        finally:
            await pool.close()


@EVERY
@pytest.mark.parametrize("operation", ["start", "renew", "finish"])
async def test_a_command_whose_commit_is_not_confirmed_is_settled_by_its_message(
    dsn: DSN, operation: str, fault: Callable[[], Fault]
) -> None:
    async with proxied(dsn) as (proxy, shop):
        task_id = await shop.submit(retry=RETRIES)
        hand = await shop.hire()
        attempt = await (hand.take() if operation == "start" else hand.run())
        before, message_id = (await shop.task(task_id))["version"], new_id()
        armed = proxy.arm(fault())

        with pytest.raises(CommitUnconfirmed):
            await send(hand, operation, attempt, message_id)
        assert armed.fired
        settled = await send(hand, operation, attempt, message_id)
        again = await send(hand, operation, attempt, message_id)

        assert settled.disposition is Disposition.APPLIED
        assert again.receipt == settled.receipt
        grew = 0 if operation == "renew" else 1
        assert (await shop.task(task_id))["version"] == settled.receipt.task_version == before + grew
        assert len(await shop.events(task_id)) == before + grew
        # One receipt a message, and no evidence of a report that was made twice.
        receipts = await shop.table("worker_receipts", attempt_id=attempt.attempt_id, message_id=message_id)
        assert len(receipts) == 1
        assert await shop.table("evidence", attempt_id=attempt.attempt_id) == []


async def send(hand: Hand, operation: str, attempt: Attempt, message_id: str) -> CommandResult:
    """The same command each time."""
    if operation == "finish":
        return await hand.finish(attempt, Outcome.FAILED, message_id, result="1", retryable=True)
    return await (hand.start if operation == "start" else hand.renew)(attempt, message_id)


@EVERY
async def test_a_claim_whose_commit_is_not_confirmed_gives_out_what_it_made(
    dsn: DSN, fault: Callable[[], Fault]
) -> None:
    async with proxied(dsn) as (proxy, shop):
        ids = sorted([await shop.submit() for _ in range(3)])
        hand = await shop.hire()
        armed = proxy.arm(fault())

        assignments = await hand.claim()

        assert armed.fired
        assignments += await hand.claim()
        # Nothing is lost until its lease is over, and nothing was claimed twice.
        assert sorted(one.task.task_id for one in assignments) == ids
        for one in assignments:
            assert (await shop.task(one.task.task_id))["attempt_count"] == 1
            await hand.start(one.attempt)


@EVERY
async def test_an_ending_whose_commit_is_not_confirmed_is_made_once(dsn: DSN, fault: Callable[[], Fault]) -> None:
    async with proxied(dsn) as (proxy, shop):
        task_id = await shop.submit(retry=RETRIES)
        hand = await shop.hire()
        await hand.take()
        await shop.lapse(task_id)
        armed = proxy.arm(fault())

        with pytest.raises(CommitUnconfirmed):
            await shop.sweep()
        assert armed.fired
        await shop.sweep()

        assert (await shop.task(task_id))["state"] == "WAITING"
        assert len(await shop.events(task_id)) == 3

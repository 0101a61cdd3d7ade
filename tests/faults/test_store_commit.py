"""COMMIT without an answer: the Store says that it does not know, and the same call made again finds out."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from orbit.mysql.errors import CommitUnconfirmed, Kind, NotCommitted
from orbit.mysql.times import LaneTimes
from receiver.outcome import Applied
from tests.support.events import QUEUE, an_event, an_id
from tests.support.naive import LookingStore
from tests.support.receiver import NAME, Bench, bench
from toxiproxy.faults import (
    Armed,
    CutAfterCommit,
    CutBeforeCommit,
    CutInHandshake,
    DarkLink,
    DelayCommitOk,
    DropCommitOk,
    End,
    Fault,
    HoldCommit,
    RefuseConnect,
    ReplaceCommitOk,
    SilentConnect,
)
from toxiproxy.journal import Point
from toxiproxy.mysql_proxy import MySQLProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from receiver.store import Store
    from tests.support.mysql import ReceiverDSNs

FIRST = Applied(applied=True, duplicate=False)
DUPLICATE = Applied(applied=True, duplicate=True)
# Short where a test waits it out (COMMIT, row locks), ample where a busy machine must not be taken for a fault.
HASTY = LaneTimes(connect_s=2.0, statement_s=10.0, commit_s=1.0, row_lock_s=1)
# The server forgets a vanished client after four seconds: long after the first row lock has timed out.
FORGETFUL = LaneTimes(connect_s=2.0, statement_s=3.0, commit_s=1.0, row_lock_s=1, wait_timeout_s=4, idle_s=2)
HANG_S = 40.0
"""No single call of these tests may take this long; deadlines of the lane end it far earlier."""


@pytest.fixture
async def receiver(receiver_dsns: ReceiverDSNs) -> AsyncIterator[Bench]:
    async with bench(receiver_dsns) as made:
        yield made


class Proxied:
    """A store behind a fault proxy; others of the same bench go straight to MySQL."""

    def __init__(self, receiver: Bench, proxy: MySQLProxy, times: LaneTimes) -> None:
        self.proxy = proxy
        self.dsn = receiver.dsns.run.with_host("127.0.0.1", proxy.port)
        self.lane = receiver.lane(self.dsn, times=times)
        self.store: Store = receiver.store_over(self.lane)

    async def unconfirmed(self, armed: Armed) -> CommitUnconfirmed:
        """Apply event 1 and get CommitUnconfirmed while the fault fires; the connection says nothing afterwards."""
        before = self.store.unconfirmed
        async with asyncio.timeout(HANG_S):
            with pytest.raises(CommitUnconfirmed) as raised:
                await self.store.apply(an_event(1))
        assert armed.fired
        assert self.store.unconfirmed == before + 1
        self.assert_silent_since_commit(raised.value.connection_id)
        return raised.value

    def assert_silent_since_commit(self, thread_id: int) -> None:
        """The journal of that connection has nothing after its COMMIT, which a dark link does not even show."""
        number = self.proxy.connection_of(thread_id)
        commands = [entry.point for entry in self.proxy.journal.at(Point.COMMAND, Point.COMMIT, connection=number)]
        settings, insert, upsert = commands[:3]
        assert {settings, insert, upsert} == {Point.COMMAND}
        assert commands[3:] == ([] if self.proxy.dark else [Point.COMMIT])


@asynccontextmanager
async def proxied(receiver: Bench, times: LaneTimes = HASTY) -> AsyncIterator[Proxied]:
    async with MySQLProxy(*receiver.dsns.run.hosts[0]) as proxy:
        yield Proxied(receiver, proxy, times)


@pytest.mark.parametrize(
    "fault",
    [
        *(DropCommitOk(end) for end in End),
        *(DropCommitOk(End.RST, keep_bytes=count) for count in range(1, 11)),
        DropCommitOk(End.FIN, keep_bytes=5),
        DropCommitOk(End.SILENCE, keep_bytes=7),
        ReplaceCommitOk(1180),
        ReplaceCommitOk(1598),
    ],
    ids=lambda fault: f"{fault.name}-{getattr(fault, 'end', '')}-{getattr(fault, 'keep_bytes', fault)}"[:48],
)
async def test_a_commit_whose_ok_is_lost_is_unconfirmed_visible_and_then_a_duplicate(
    receiver: Bench, fault: Fault
) -> None:
    async with proxied(receiver) as behind:
        armed = behind.proxy.arm(fault)
        await behind.unconfirmed(armed)
        assert list(receiver.applied_flags()) == [an_id(1)]
        before = receiver.views()
        assert await receiver.store().apply(an_event(1)) == DUPLICATE
        assert await behind.store.apply(an_event(1)) == DUPLICATE
        assert receiver.views() == before
        assert receiver.view()["applied_events"] == 1


@pytest.mark.parametrize("end", [End.FIN, End.RST])
async def test_a_commit_that_never_reached_mysql_is_unconfirmed_as_well_and_then_applied(
    receiver: Bench, end: End
) -> None:
    async with proxied(receiver) as behind:
        armed = behind.proxy.arm(CutBeforeCommit(end))
        error = await behind.unconfirmed(armed)
        # By nothing in it can the caller tell this from a lost answer.
        assert (error.errno, error.kind) == (2013, Kind.UNCONFIRMED)
        assert receiver.inbox() == []
        assert await receiver.store().apply(an_event(1)) == FIRST
        assert receiver.view()["applied_events"] == 1


async def test_a_commit_cut_right_after_it_was_sent_is_applied_once_whichever_way_it_went(receiver: Bench) -> None:
    async with proxied(receiver) as behind:
        await behind.unconfirmed(behind.proxy.arm(CutAfterCommit()))
        assert await receiver.store().apply(an_event(1)) in {FIRST, DUPLICATE}
        assert receiver.view()["applied_events"] == 1


async def test_while_a_commit_is_held_reconciling_waits_for_it_and_finds_the_duplicate(receiver: Bench) -> None:
    async with proxied(receiver) as behind:
        release = asyncio.Event()
        armed = behind.proxy.arm(HoldCommit(release))
        await behind.unconfirmed(armed)
        async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as group:
            reconciling = group.create_task(receiver.store().apply(an_event(1)))
            await receiver.until_waiting(1)
            assert not reconciling.done()
            release.set()
        assert reconciling.result() == DUPLICATE
        assert receiver.view()["applied_events"] == 1


async def test_a_commit_held_longer_than_the_lock_wait_stays_undecided_until_it_arrives(receiver: Bench) -> None:
    async with proxied(receiver) as behind:
        release = asyncio.Event()
        armed = behind.proxy.arm(HoldCommit(release))
        await behind.unconfirmed(armed)
        second = receiver.store(times=HASTY)
        for _ in range(2):
            with pytest.raises(NotCommitted) as raised:
                await second.apply(an_event(1))
            assert (raised.value.errno, raised.value.kind) == (1205, Kind.RETRY)
        assert receiver.inbox() == []
        release.set()
        await armed.wait_finished(HANG_S)
        assert await second.apply(an_event(1)) == DUPLICATE
        assert receiver.view()["applied_events"] == 1


async def test_looking_for_the_row_answers_wrongly_where_trying_again_answers_rightly(receiver: Bench) -> None:
    async with proxied(receiver) as behind:
        release = asyncio.Event()
        armed = behind.proxy.arm(HoldCommit(release))
        looking = LookingStore(behind.lane, consumer_name=NAME, queue_id=QUEUE, looking=receiver.lane())
        assert await looking.apply_and_look(an_event(1)) is None  # "it was rolled back"
        assert armed.fired
        release.set()
        await armed.wait_finished(HANG_S)
        assert list(receiver.applied_flags()) == [an_id(1)]  # it was not
        assert await receiver.store().apply(an_event(1)) == DUPLICATE


async def test_an_ok_that_comes_too_late_is_read_by_nobody(receiver: Bench) -> None:
    async with proxied(receiver) as behind:
        release = asyncio.Event()
        armed = behind.proxy.arm(DelayCommitOk(release))
        error = await behind.unconfirmed(armed)
        assert await behind.store.apply(an_event(1)) == DUPLICATE
        release.set()
        await armed.wait_finished(HANG_S)
        behind.assert_silent_since_commit(error.connection_id)
        assert await behind.store.apply(an_event(2, version=2)) == FIRST


@pytest.mark.parametrize("fault", [HoldCommit, DelayCommitOk])
async def test_a_task_cancelled_inside_commit_leaves_it_unconfirmed_and_its_connection_unused(
    receiver: Bench, fault: type[HoldCommit] | type[DelayCommitOk]
) -> None:
    async with proxied(receiver, LaneTimes()) as behind:
        release = asyncio.Event()
        armed = behind.proxy.arm(fault(release))
        task = asyncio.create_task(behind.store.apply(an_event(1)))
        entry = await armed.wait(HANG_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert behind.store.unconfirmed == 1
        assert entry.thread_id is not None
        release.set()
        await armed.wait_finished(HANG_S)
        assert await behind.store.apply(an_event(1)) == DUPLICATE
        behind.assert_silent_since_commit(entry.thread_id)
        assert behind.store.unconfirmed == 1


async def test_a_cancellation_before_commit_leaves_nothing_and_nothing_in_doubt(receiver: Bench) -> None:
    store = receiver.store(times=LaneTimes())
    await store.apply(an_event(1, version=1))
    async with receiver.locked_views():
        task = asyncio.create_task(store.apply(an_event(2, version=2)))
        await receiver.until_waiting(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert store.unconfirmed == 0
    assert list(receiver.applied_flags()) == [an_id(1)]
    assert await store.apply(an_event(2, version=2)) == FIRST


@pytest.mark.parametrize("after_statement", [0, 1])
async def test_a_link_that_goes_dark_before_commit_ends_in_not_committed_and_never_hangs(
    receiver: Bench, after_statement: int
) -> None:
    async with proxied(receiver, FORGETFUL) as behind:
        armed = behind.proxy.arm(DarkLink(after_statement))
        async with asyncio.timeout(HANG_S):
            with pytest.raises(NotCommitted) as raised:
                await behind.store.apply(an_event(1))
        assert armed.fired
        assert raised.value.kind is Kind.RECONNECT
        assert behind.store.unconfirmed == 0
        behind.proxy.heal()
        assert await _until_decided(behind.store) == FIRST
        assert receiver.view()["applied_events"] == 1


@pytest.mark.parametrize("fault", [DarkLink(2), CutBeforeCommit(End.SILENCE)], ids=["link", "commit"])
async def test_a_commit_into_the_dark_is_unconfirmed_and_decided_once_the_server_forgets_the_session(
    receiver: Bench, fault: Fault
) -> None:
    async with proxied(receiver, FORGETFUL) as behind:
        await behind.unconfirmed(behind.proxy.arm(fault))
        behind.proxy.heal()
        # The lost session still holds its row locks: at first every answer is "still in doubt".
        with pytest.raises(NotCommitted) as raised:
            await behind.store.apply(an_event(1))
        assert raised.value.errno == 1205
        assert await _until_decided(behind.store) == FIRST
        assert receiver.view()["applied_events"] == 1


async def test_reconciling_that_is_cut_itself_decides_nothing_until_it_gets_through(receiver: Bench) -> None:
    async with proxied(receiver) as behind:
        await behind.unconfirmed(behind.proxy.arm(DropCommitOk()))
        for fault in (RefuseConnect(), SilentConnect(), CutInHandshake("login")):
            armed = behind.proxy.arm(fault)
            async with asyncio.timeout(HANG_S):
                with pytest.raises(NotCommitted) as raised:
                    await behind.store.apply(an_event(1))
            assert armed.fired
            assert raised.value.kind is Kind.RECONNECT
        assert await behind.store.apply(an_event(1)) == DUPLICATE
        assert behind.store.unconfirmed == 1


async def test_commits_of_other_lanes_pass_while_one_is_lost(receiver: Bench) -> None:
    async with proxied(receiver) as behind:
        release = asyncio.Event()
        armed = behind.proxy.arm(HoldCommit(release))
        held = asyncio.create_task(behind.store.apply(an_event(1)))
        await armed.wait(HANG_S)
        other = receiver.store(dsn=behind.dsn)
        assert await other.apply(an_event(2, task_id=an_id(2, kind="c"))) == FIRST
        release.set()
        assert await held == FIRST


async def _until_decided(store: Store) -> Applied:
    """Apply event 1 again until it is decided, as the receiver does within a lease."""
    async with asyncio.timeout(HANG_S):
        while True:
            try:
                return await store.apply(an_event(1))
            except NotCommitted as error:
                if not error.kind.passes:
                    raise

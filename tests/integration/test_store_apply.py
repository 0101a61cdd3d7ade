"""The Store on a real MySQL: one event, one effect, in whatever order and company events come."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from orbit.mysql.errors import Kind, NotCommitted
from orbit.protocol.event import Event
from receiver.outcome import Applied, EventConflict, InvalidEvent, VersionConflict
from receiver.record import Record, record_of
from receiver.statements import INSERT_INBOX
from receiver.store import Store
from tests.support.events import QUEUE, TASK, an_event, an_id, event_bytes
from tests.support.receiver import NAME, Bench, bench

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orbit.mysql.transaction import Transaction
    from tests.support.mysql import ReceiverDSNs

FIRST = Applied(applied=True, duplicate=False)
STALE = Applied(applied=False, duplicate=False)


@pytest.fixture
async def receiver(receiver_dsns: ReceiverDSNs) -> AsyncIterator[Bench]:
    async with bench(receiver_dsns) as made:
        yield made


async def test_a_new_event_makes_its_inbox_row_and_its_view(receiver: Bench) -> None:
    given = an_event(1, version=7, result={"a": 1})
    assert await receiver.store().apply(given) == FIRST
    (row,) = receiver.inbox()
    accepted_at = row.pop("accepted_at")
    assert row == {
        "consumer_name": NAME,
        "queue_id": QUEUE,
        "event_id": an_id(1),
        "event": given.text,
        "event_sha256": given.sha256,
        "applied": 1,
    }
    view = receiver.view()
    created_at, updated_at = view.pop("created_at"), view.pop("updated_at")
    assert view == {
        "consumer_name": NAME,
        "queue_id": QUEUE,
        "task_id": TASK,
        "task_version": 7,
        "last_event_id": an_id(1),
        "state": "SUCCEEDED",
        "result": '{"a":1}',
        "applied_events": 1,
    }
    (clock,) = receiver.sql("SELECT UTC_TIMESTAMP(6) AS now")
    for moment in (accepted_at, created_at, updated_at):
        assert 0 <= (clock["now"] - moment).total_seconds() < 60


async def test_a_repeated_event_is_a_duplicate_and_moves_nothing(receiver: Bench) -> None:
    store = receiver.store()
    await store.apply(an_event(1))
    before = receiver.inbox(), receiver.views()
    for _ in range(3):
        assert await store.apply(an_event(1)) == Applied(applied=True, duplicate=True)
    assert await receiver.store().apply(an_event(1)) == Applied(applied=True, duplicate=True)
    assert (receiver.inbox(), receiver.views()) == before


async def test_a_repeated_event_in_another_spelling_is_the_same_event(receiver: Bench) -> None:
    store = receiver.store()
    await store.apply(an_event(1, result={"a": 1, "b": "é"}))
    other = (
        '{ "result" : {"b":"\\u00e9", "a":1}, "task_version":"1", "task_id":"' + TASK + '", "state":"SUCCEEDED",'
        '"queue_id":"' + QUEUE + '", "occurred_at":"2026-01-31T08:15:30.000000Z", "event_type":"task.succeeded",'
        '"event_id":"' + an_id(1) + '"}'
    ).encode()
    assert await store.apply(Event.parse(other)) == Applied(applied=True, duplicate=True)


async def test_eight_deliveries_of_one_event_at_once_advance_the_view_once(receiver: Bench) -> None:
    answers = await _apply_all(receiver, [an_event(1)] * 8)
    assert answers.count(FIRST) == 1
    assert answers.count(Applied(applied=True, duplicate=True)) == 7
    assert len(receiver.inbox()) == 1
    assert receiver.view()["applied_events"] == 1


async def test_eight_that_wait_for_one_row_at_the_same_moment_advance_the_view_once(receiver: Bench) -> None:
    given = an_event(1)
    holding, release = asyncio.Event(), asyncio.Event()

    async def hold(transaction: Transaction) -> None:
        await transaction.execute(INSERT_INBOX, record_of(given, consumer_name=NAME, queue_id=QUEUE).inbox)
        holding.set()
        await release.wait()

    async with asyncio.TaskGroup() as group:
        group.create_task(receiver.lane(name="holder").read(hold, budget_s=20))
        await asyncio.wait_for(holding.wait(), 10)
        racing = group.create_task(_apply_all(receiver, [given] * 8))
        await receiver.until_waiting(8)
        release.set()
    assert racing.result().count(FIRST) == 1
    assert racing.result().count(Applied(applied=True, duplicate=True)) == 7
    assert receiver.view()["applied_events"] == 1


async def test_the_same_id_with_other_content_is_a_conflict_and_changes_nothing(receiver: Bench) -> None:
    store = receiver.store()
    first, other = an_event(1, result=1), an_event(1, version=9, result=2)
    await store.apply(first)
    before = receiver.inbox(), receiver.views()
    with pytest.raises(EventConflict) as raised:
        await store.apply(other)
    assert (raised.value.recorded_sha256, raised.value.given_sha256) == (first.sha256, other.sha256)
    assert (receiver.inbox(), receiver.views()) == before
    assert await store.apply(first) == Applied(applied=True, duplicate=True)


async def test_an_event_that_differs_in_an_unknown_member_only_is_a_conflict(receiver: Bench) -> None:
    store = receiver.store()
    await store.apply(an_event(1, added_later="a"))
    with pytest.raises(EventConflict):
        await store.apply(an_event(1, added_later="b"))


async def test_an_older_version_is_kept_without_moving_the_view_and_its_duplicate_says_so(receiver: Bench) -> None:
    store = receiver.store()
    await store.apply(an_event(1, version=5, result={"kept": True}))
    before = receiver.views()
    assert await store.apply(an_event(2, version=4, result={"old": True})) == STALE
    assert receiver.views() == before
    assert await store.apply(an_event(2, version=4, result={"old": True})) == Applied(applied=False, duplicate=True)
    assert await store.apply(an_event(1, version=5, result={"kept": True})) == Applied(applied=True, duplicate=True)
    assert receiver.applied_flags() == {an_id(1): 1, an_id(2): 0}
    assert receiver.views() == before


async def test_the_same_version_under_another_id_rolls_everything_back(receiver: Bench) -> None:
    store = receiver.store()
    await store.apply(an_event(1, version=5))
    before = receiver.inbox(), receiver.views()
    for _ in range(2):
        with pytest.raises(VersionConflict) as raised:
            await store.apply(an_event(2, version=5))
        assert (raised.value.event_id, raised.value.task_id, raised.value.task_version) == (an_id(2), TASK, 5)
    assert (receiver.inbox(), receiver.views()) == before


async def test_a_conflict_is_judged_against_the_views_present_version_only(receiver: Bench) -> None:
    store = receiver.store()
    await store.apply(an_event(1, version=5))
    await store.apply(an_event(2, version=6))
    assert await store.apply(an_event(3, version=5)) == STALE


async def test_versions_grow_past_gaps_and_every_advance_is_counted(receiver: Bench) -> None:
    store = receiver.store()
    for number, version in enumerate((1, 2, 10, 2**63, 2**64 - 1), start=1):
        assert await store.apply(an_event(number, version=version)) == FIRST
    assert await store.apply(an_event(9, version=2**64 - 2)) == STALE
    view = receiver.view()
    assert (view["task_version"], view["applied_events"], view["last_event_id"]) == (2**64 - 1, 5, an_id(5))
    assert view["created_at"] < view["updated_at"]


async def test_two_first_events_of_one_new_task_at_once_lose_neither(receiver: Bench) -> None:
    for round_number in range(10):
        task = an_id(round_number, kind="c")
        low = an_event(2 * round_number, version=1, task_id=task)
        high = an_event(2 * round_number + 1, version=2, task_id=task)
        answers = await _apply_all(receiver, [low, high])
        assert answers[1] == FIRST
        assert answers[0] in {FIRST, STALE}
    assert len(receiver.inbox()) == 20
    applied = receiver.applied_flags()
    for view in receiver.views():
        number = int(view["task_id"][1:], 16)
        assert (view["task_version"], view["last_event_id"]) == (2, an_id(2 * number + 1))
        assert view["applied_events"] == applied[an_id(2 * number)] + applied[an_id(2 * number + 1)]


async def test_events_of_one_task_in_every_order_end_in_the_newest_state(receiver: Bench) -> None:
    events = [an_event(number, version=number) for number in range(1, 17)]
    answers = await _apply_all(
        receiver, [events[index] for index in (7, 3, 15, 0, 9, 12, 4, 1, 14, 6, 2, 11, 5, 10, 8, 13)]
    )
    assert len(receiver.inbox()) == 16
    view = receiver.view()
    assert (view["task_version"], view["last_event_id"]) == (16, an_id(16))
    assert view["applied_events"] == sum(answer.applied for answer in answers)
    assert sum(receiver.applied_flags().values()) == view["applied_events"]


async def test_consumers_and_queues_do_not_see_each_other(receiver: Bench) -> None:
    other_queue = "b" * 32
    for consumer, queue in ((NAME, QUEUE), (NAME, other_queue), ("other", QUEUE)):
        store = receiver.store(consumer_name=consumer, queue_id=queue)
        assert await store.apply(an_event(1, queue_id=queue)) == FIRST
    assert len(receiver.inbox()) == len(receiver.views()) == 3
    assert [view["applied_events"] for view in receiver.views()] == [1, 1, 1]


async def test_an_event_of_another_queue_or_without_a_result_writes_nothing(receiver: Bench) -> None:
    store = receiver.store()
    with pytest.raises(InvalidEvent, match="another queue"):
        await store.apply(an_event(1, queue_id="b" * 32))
    submitted = event_bytes(1).replace(b"task.succeeded", b"task.submitted").replace(b"SUCCEEDED", b"WAITING")
    with pytest.raises(InvalidEvent, match="reports no result"):
        await store.apply(Event.parse(submitted))
    assert receiver.inbox() == receiver.views() == []


async def test_a_failing_view_update_leaves_no_inbox_row(receiver: Bench) -> None:
    store = receiver.store()
    await store.apply(an_event(1, version=1))
    before = receiver.inbox(), receiver.views()
    async with receiver.locked_views():
        with pytest.raises(NotCommitted) as raised:
            await store.apply(an_event(2, version=2))
        assert (raised.value.errno, raised.value.kind) == (1205, Kind.RETRY)
        assert (receiver.inbox(), receiver.views()) == before
    assert await store.apply(an_event(2, version=2)) == FIRST


async def test_a_duplicate_key_of_the_views_is_an_error_and_no_known_event(receiver: Bench) -> None:
    receiver.sql("ALTER TABLE receiver_task_views ADD UNIQUE KEY uq_wrong (state)")
    store = receiver.store()
    tasks = [an_id(1, kind="c"), an_id(2, kind="c")]
    await store.apply(an_event(1, task_id=tasks[0]))
    await store.apply(an_event(2, task_id=tasks[1], event_type="task.failed"))
    with pytest.raises(NotCommitted) as raised:
        await store.apply(an_event(3, version=2, task_id=tasks[1]))
    assert (raised.value.errno, raised.value.kind) == (1062, Kind.DATA)
    assert list(receiver.applied_flags()) == [an_id(1), an_id(2)]


async def test_three_racers_whose_first_rolls_back_end_with_one_row(receiver: Bench) -> None:
    lane = receiver.lane(name="first")
    holding, release = asyncio.Event(), asyncio.Event()
    given = an_event(1)

    class ChangedMind(Exception):
        pass

    async def first() -> None:
        async def work(transaction: Transaction) -> None:
            record = record_of(given, consumer_name=NAME, queue_id=QUEUE)
            await transaction.execute(INSERT_INBOX, record.inbox)
            holding.set()
            await release.wait()
            raise ChangedMind

        with pytest.raises(ChangedMind):
            await lane.run(work, budget_s=10)

    async def racer() -> Applied:
        store = receiver.store()
        while True:
            try:
                return await store.apply(given)
            except NotCommitted as error:
                # InnoDB ends one of the two waiters with a deadlock when the first rolls back.
                if error.errno != 1213:
                    raise

    async with asyncio.TaskGroup() as group:
        group.create_task(first())
        await asyncio.wait_for(holding.wait(), 10)
        racers = [group.create_task(racer()) for _ in range(2)]
        await receiver.until_waiting(2)
        release.set()
    assert sorted(task.result().duplicate for task in racers) == [False, True]
    assert len(receiver.inbox()) == 1
    assert receiver.view()["applied_events"] == 1


async def test_an_inbox_row_that_was_removed_comes_back_without_moving_the_view(receiver: Bench) -> None:
    store = receiver.store()
    await store.apply(an_event(1, version=3))
    before = receiver.views()
    receiver.sql("DELETE FROM receiver_inbox")
    assert await store.apply(an_event(1, version=3)) == Applied(applied=True, duplicate=True)
    assert receiver.applied_flags() == {an_id(1): 1}
    assert receiver.views() == before


@pytest.mark.parametrize(
    "result",
    [
        '{"n":18446744073709551617.10}',
        "-0",
        "1.000000000000000005",
        "1E400",
        '{"a":1e-400,"b":[1.0,100e1]}',
        '"\\u0000\\u001f \u2028 \U0001f600 \u00e9 e\u0301 \'quoted\' \\\\ %s %% \\"x\\""',
        "false",
        '""',
        "[]",
    ],
)
async def test_a_result_comes_back_digit_for_digit(receiver: Bench, result: str) -> None:
    given = Event.parse(event_bytes(1, result=msgspec.Raw(result.encode())))
    await receiver.store().apply(given)
    assert receiver.view()["result"] == result
    (row,) = receiver.inbox()
    assert f'"result":{result}' in row["event"]
    assert row["event"] == given.text


async def test_a_result_of_250_kib_comes_back_digit_for_digit(receiver: Bench) -> None:
    result = "[" + ",".join(f"{number}.10" for number in range(10_000_000, 10_021_000)) + "]"
    assert 240 * 1024 < len(result) < 256 * 1024
    given = Event.parse(event_bytes(1, result=msgspec.Raw(result.encode())))
    await receiver.store().apply(given)
    assert receiver.view()["result"] == result
    assert receiver.inbox()[0]["event"] == given.text
    assert await receiver.store().apply(given) == Applied(applied=True, duplicate=True)


async def test_a_missing_result_is_sql_null_also_after_a_version_that_had_one(receiver: Bench) -> None:
    store = receiver.store()
    await store.apply(an_event(1, version=1))
    assert receiver.sql("SELECT result IS NULL AS missing FROM receiver_task_views") == [{"missing": 1}]
    await store.apply(an_event(2, version=2, result={"a": 1}))
    assert receiver.view()["result"] == '{"a":1}'
    await store.apply(an_event(3, version=3))
    assert receiver.sql("SELECT result IS NULL AS missing FROM receiver_task_views") == [{"missing": 1}]


@pytest.mark.parametrize(
    ("event_type", "state"),
    [("task.needs_review", "NEEDS_REVIEW"), ("task.failed", "FAILED"), ("task.cancelled", "CANCELLED")],
)
async def test_a_state_that_is_no_success_stays_what_it_is(receiver: Bench, event_type: str, state: str) -> None:
    store = receiver.store()
    await store.apply(an_event(1, version=1))
    await store.apply(an_event(2, version=2, event_type=event_type))
    assert receiver.view()["state"] == state


async def test_the_row_vanishing_between_insert_and_look_starts_again_from_the_insert(receiver: Bench) -> None:
    class Vanishing(Store):
        """Takes the recorded row away, once, just before this store looks at it."""

        looks = 0

        async def _recorded(self, record: Record, deadline: float) -> tuple[str, int] | None:
            Vanishing.looks += 1
            if Vanishing.looks == 1:
                receiver.sql("DELETE FROM receiver_inbox")
                receiver.sql("DELETE FROM receiver_task_views")
            return await super()._recorded(record, deadline)

    await receiver.store().apply(an_event(1))
    assert await receiver.store(kind=Vanishing).apply(an_event(1)) == FIRST
    assert Vanishing.looks == 1
    assert receiver.view()["applied_events"] == 1


async def test_a_row_that_vanishes_every_time_is_not_committed_and_may_be_tried_again(receiver: Bench) -> None:
    class AlwaysGone(Store):
        async def _recorded(self, record: Record, deadline: float) -> tuple[str, int] | None:
            return None

    await receiver.store().apply(an_event(1))
    with pytest.raises(NotCommitted) as raised:
        await receiver.store(kind=AlwaysGone).apply(an_event(1))
    assert raised.value.kind is Kind.RETRY


async def _apply_all(receiver: Bench, events: list[Event]) -> list[Applied]:
    """Apply all at once, each on a store of its own; a lost race is run again."""

    async def one(event: Event) -> Applied:
        store = receiver.store()
        while True:
            try:
                return await store.apply(event)
            except NotCommitted as error:
                if error.kind is not Kind.RETRY:
                    raise

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(event)) for event in events]
    return [task.result() for task in tasks]

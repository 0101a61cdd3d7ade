"""The handler of deliveries: what each ending of an event is called, counted, logged and told to the SDK."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, cast

import pytest
from structlog.testing import capture_logs

from orbit.protocol.errors import InvalidValue
from orbit.protocol.http_v1 import EventType, Subscription
from orbit.sdk import Delivery, InvalidDelivery, Unavailable
from receiver.consume import Receiver, SubscriptionRefused, check_subscription
from receiver.outage import Outage
from receiver.outcome import Applied, EventConflict, EventRefused, Outcome, VersionConflict
from receiver.settle import Undecided
from tests.support.events import QUEUE, TASK, an_event, an_id
from tests.support.scripted_store import DENIED, DOUBT, LOWERED, REFUSED, SILENT, TOO_LONG, Scripted

if TYPE_CHECKING:
    from receiver.store import Store

WHO = {"event_id": an_id(1), "task_id": TASK, "task_version": 5, "delivery_attempt": 3}


def delivery() -> Delivery:
    return Delivery(
        delivery_id=an_id(1, kind="d"),
        event=an_event(1, version=5, result={"hidden": 1}),
        attempt=3,
        attempt_budget=10,
        deadline=time.monotonic() + 30,
    )


def receiver_of(script: Scripted, *, draining: bool = False, outage: Outage | None = None) -> Receiver:
    asked = asyncio.Event()
    if draining:
        asked.set()
    return Receiver([cast("Store", script)], draining=asked, outage=outage or Outage())


async def handle(receiver: Receiver) -> tuple[BaseException | None, list[Any]]:
    """Handle one delivery: what was raised, and the lines that end the event."""
    raised: BaseException | None = None
    with capture_logs() as lines:
        try:
            async with asyncio.timeout(10):
                await receiver(delivery())
        except (EventRefused, Undecided, Unavailable) as error:
            raised = error
    return raised, [line for line in lines if line["event"] not in {"event tried again", "commit unconfirmed"}]


@pytest.mark.parametrize(
    ("answers", "word"),
    [
        ([Applied(applied=True, duplicate=False)], "applied"),
        ([Applied(applied=False, duplicate=False)], "stale"),
        ([Applied(applied=True, duplicate=True)], "duplicate"),
        ([DOUBT, Applied(applied=True, duplicate=True)], "duplicate"),
    ],
)
async def test_a_stored_event_returns_and_has_one_line(answers: list[Applied | Exception], word: str) -> None:
    outage = Outage()
    receiver = receiver_of(Scripted(*answers), outage=outage)
    raised, lines = await handle(receiver)
    assert raised is None
    assert lines == [{"event": f"event {word}", "log_level": "info", "outcome": word, **WHO}]
    assert receiver.counts == {word: 1}
    assert not outage.lasts


@pytest.mark.parametrize(
    ("answers", "word", "level", "facts"),
    [
        (
            [EventConflict(an_id(1), "1" * 64, "2" * 64)],
            "event_conflict",
            "error",
            {"recorded_sha256": "1" * 64, "given_sha256": "2" * 64},
        ),
        (
            [VersionConflict(an_id(1), TASK, 5)],
            "version_conflict",
            "error",
            {"reason": f"version 5 of task {TASK} came from another event than {an_id(1)}"},
        ),
        (
            [TOO_LONG],
            "invalid",
            "error",
            {"failure": "NotCommitted", "errno": 1406, "kind": "data", "reason": None, "paused": False},
        ),
    ],
)
async def test_a_refused_event_raises_and_is_said_loudly(
    answers: list[Exception], word: str, level: str, facts: dict[str, Any]
) -> None:
    outage = Outage()
    receiver = receiver_of(Scripted(*answers), outage=outage)
    raised, lines = await handle(receiver)
    assert isinstance(raised, EventRefused | Undecided)
    assert lines == [{"event": f"event {word}", "log_level": level, "outcome": word, **WHO, **facts}]
    assert receiver.counts == {word: 1}
    assert not outage.lasts


@pytest.mark.parametrize(
    ("answers", "word", "facts"),
    [
        ([REFUSED] * 3, "unavailable", {"errno": 2003, "kind": "reconnect", "reason": None}),
        ([SILENT] * 3, "unavailable", {"errno": None, "kind": "reconnect", "reason": "no answer in time"}),
        ([DENIED], "unavailable", {"errno": 1142, "kind": "configuration", "reason": None}),
        ([LOWERED], "unavailable", {"errno": 1153, "kind": "configuration", "reason": None}),
        ([DOUBT, DENIED], "unconfirmed", {"errno": 1142, "kind": "configuration", "reason": None}),
    ],
)
async def test_a_database_that_cannot_be_used_pauses_the_consumer(
    answers: list[Exception], word: str, facts: dict[str, Any]
) -> None:
    outage = Outage()
    receiver = receiver_of(Scripted(*answers), outage=outage)
    raised, lines = await handle(receiver)
    assert isinstance(raised, Unavailable)
    assert lines == [
        {
            "event": f"event {word}",
            "log_level": "warning",
            "outcome": word,
            "failure": "NotCommitted",
            **WHO,
            **facts,
            "paused": True,
        }
    ]
    assert outage.lasts


async def test_a_doubt_at_a_drain_stays_unacknowledged_without_a_pause() -> None:
    outage = Outage()
    receiver = receiver_of(Scripted(DOUBT), draining=True, outage=outage)
    raised, lines = await handle(receiver)
    assert isinstance(raised, Undecided)
    assert [(line["outcome"], line["paused"]) for line in lines] == [("unconfirmed", False)]
    assert not outage.lasts


@pytest.mark.parametrize(("answers", "word"), [([], "unavailable"), ([DOUBT], "unconfirmed")])
async def test_a_cancelled_handler_says_what_became_of_its_event(answers: list[Exception], word: str) -> None:
    script = Scripted(*answers)
    receiver = receiver_of(script)
    with capture_logs() as lines:
        task = asyncio.ensure_future(receiver(delivery()))
        async with asyncio.timeout(10):
            while len(script.budgets) <= len(answers):
                await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert lines[-1] == {
        "event": f"event {word}", "log_level": "warning", "outcome": word, "reason": "cancelled", **WHO,
    }  # fmt: skip
    assert receiver.counts == {word: 1}


async def test_only_a_stored_event_makes_the_next_outage_begin_with_a_short_wait() -> None:
    class Noting(Outage):
        seen = 0

        def stored(self) -> None:
            self.seen += 1

    outage = Noting()
    receiver = receiver_of(
        Scripted(DENIED, Applied(applied=True, duplicate=True), VersionConflict("e", "t", 1)), outage=outage
    )
    seen = []
    for _ in range(3):
        await handle(receiver)
        seen.append(outage.seen)
    assert seen == [0, 1, 1]


async def test_a_store_is_free_again_whatever_became_of_its_event() -> None:
    first = Applied(applied=True, duplicate=False)
    receiver = receiver_of(Scripted(DENIED, first, VersionConflict("e", "t", 1), first))
    for _ in range(4):
        await handle(receiver)
    assert receiver.counts == {Outcome.UNAVAILABLE: 1, Outcome.APPLIED: 2, Outcome.VERSION_CONFLICT: 1}


async def test_an_event_that_the_sdk_could_not_accept_is_counted_and_said_loudly() -> None:
    receiver = receiver_of(Scripted())
    with capture_logs() as lines:
        receiver.invalid(
            InvalidDelivery(
                delivery_id="d" * 32,
                event_id=None,
                attempt=2,
                attempt_budget=10,
                error=InvalidValue("event.result", "must not be null"),
            )
        )
    assert lines == [
        {
            "event": "event invalid",
            "log_level": "error",
            "outcome": "invalid",
            "event_id": None,
            "delivery_id": "d" * 32,
            "delivery_attempt": 2,
            "reason": "event.result: must not be null",
        }
    ]
    assert receiver.counts == {Outcome.INVALID: 1}


def a_subscription(*types: EventType, queue_id: str = QUEUE) -> Subscription:
    time_text = "2026-01-31T08:15:30Z"
    return Subscription(
        subscription_id="b" * 32,
        queue_id=queue_id,
        event_types=list(types),
        enabled=True,
        window=64,
        attempt_budget=10,
        created_at=time_text,
        updated_at=time_text,
    )


def test_a_subscription_to_results_of_the_configured_queue_is_accepted() -> None:
    check_subscription(
        a_subscription(EventType.SUCCEEDED, EventType.FAILED, EventType.CANCELLED, EventType.NEEDS_REVIEW),
        queue_id=QUEUE,
    )


@pytest.mark.parametrize("other", [EventType.SUBMITTED, EventType.LEASED, EventType.STARTED, EventType.REQUEUED])
def test_a_subscription_with_any_other_event_is_refused(other: EventType) -> None:
    with pytest.raises(SubscriptionRefused, match=f"has {other}; the receiver takes results only"):
        check_subscription(a_subscription(EventType.CANCELLED, other), queue_id=QUEUE)


def test_a_subscription_of_another_queue_is_refused() -> None:
    with pytest.raises(SubscriptionRefused, match=f"is bound to queue {'f' * 32}, configured is {QUEUE}"):
        check_subscription(a_subscription(EventType.CANCELLED, queue_id="f" * 32), queue_id=QUEUE)

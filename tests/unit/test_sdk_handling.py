"""The tasks of the handlers, where no connection is needed to show it."""

from __future__ import annotations

from orbit.protocol.event import Event
from orbit.protocol.events_v1 import Proof
from orbit.protocol.values import Secret
from orbit.sdk import Delivery
from orbit.sdk.book import Book, Lease
from orbit.sdk.changes import Changes
from orbit.sdk.handling import Handling

EVENT = Event.parse(
    b'{"event_id":"00000000000000000000000000000001","event_type":"task.cancelled","occurred_at":"2026-11-30T08:00:00Z",'
    b'"queue_id":"00000000000000000000000000000002","state":"CANCELLED","task_id":"00000000000000000000000000000003",'
    b'"task_version":"2"}'
)


async def test_a_handler_that_is_cancelled_before_its_first_step_has_failed() -> None:
    calls: list[Delivery] = []

    async def handler(delivery: Delivery) -> None:
        calls.append(delivery)

    book, changes = Book(1, 0), Changes()
    proof = Proof(delivery_id="1" * 32, epoch=1, lease_secret=Secret("A" * 43))
    endless = float("inf")
    book.take(Lease(proof=proof, event=EVENT, attempt=1, attempt_budget=10, deadline=endless, start_by=endless))
    handling = Handling(book, handler, changes.notify, lambda: None)

    handling.look()
    await handling.cancel()

    assert calls == []
    assert (book.counts.running, book.counts.failed) == (0, 1)
    assert [(one.proof, one.started) for one in book.batch(64, give_back=True)] == [(proof, True)]

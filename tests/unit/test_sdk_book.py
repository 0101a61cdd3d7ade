"""The book of held deliveries, first case by case, then against every order of events that hypothesis thinks of."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from orbit.protocol.errors import ErrorCode
from orbit.protocol.event import Event
from orbit.protocol.events_v1 import Disposition, Proof, Verdict
from orbit.protocol.values import Secret, parse_time
from orbit.sdk.book import FINISHED_REMEMBERED, Book, Held, Lease, Report
from tests.support.consuming import whole

ACKED_AT = parse_time("2026-11-30T08:00:00Z", "acked_at")
EVENT = Event.parse(
    b'{"event_id":"00000000000000000000000000000001","event_type":"task.cancelled","occurred_at":"2026-11-30T08:00:00Z",'
    b'"queue_id":"00000000000000000000000000000002","state":"CANCELLED","task_id":"00000000000000000000000000000003",'
    b'"task_version":"2"}'
)


def proof(number: int, epoch: int = 1) -> Proof:
    return Proof(delivery_id=f"{number:032x}", epoch=epoch, lease_secret=Secret("A" * 43))


def lease(number: int, epoch: int = 1, start_by: float = 100.0) -> Lease:
    return Lease(
        proof=proof(number, epoch), event=EVENT, attempt=1, attempt_budget=10, deadline=start_by, start_by=start_by
    )


def acked(one: Proof) -> Verdict:
    return Verdict(delivery_id=one.delivery_id, epoch=one.epoch, disposition=Disposition.ACKED, acked_at=ACKED_AT)


def refused(one: Proof, code: ErrorCode = ErrorCode.STALE_EPOCH) -> Verdict:
    return Verdict(delivery_id=one.delivery_id, epoch=one.epoch, disposition=Disposition.REFUSED, code=code)


def released(one: Proof) -> Verdict:
    return Verdict(delivery_id=one.delivery_id, epoch=one.epoch, disposition=Disposition.RELEASED)


def started(book: Book, now: float = 0.0) -> Held:
    held = book.start(now)
    assert held is not None
    return held


def told(book: Book, *, give_back: bool = True) -> list[tuple[int, int, bool | None]]:
    """What the book reports next: number, epoch and `started` of each."""
    batch = book.batch(64, give_back=give_back)
    return [(int(one.proof.delivery_id, 16), one.proof.epoch, one.started) for one in batch]


def test_deliveries_start_in_their_order_up_to_the_concurrency() -> None:
    book = Book(2, 3)
    for number in (3, 1, 2):
        book.take(lease(number))
    assert [int(started(book).lease.proof.delivery_id, 16) for _ in range(2)] == [3, 1]
    assert book.start(0.0) is None
    assert (book.counts.running, book.counts.waiting) == (2, 1)


def test_a_finished_delivery_is_pending_until_its_verdict() -> None:
    book = Book(1, 1)
    book.take(lease(1))
    book.finish(started(book))
    assert (book.counts.pending, book.settled) == (1, False)
    assert told(book) == [(1, 1, None)]
    assert told(book) == []
    assert book.settle([acked(proof(1))]) == []
    assert (book.counts.acknowledged, book.counts.pending, book.settled) == (1, 0, True)


def test_what_was_sent_without_a_verdict_is_reported_again_first() -> None:
    book = Book(3, 0)
    for number in (1, 2, 3):
        book.take(lease(number))
    held = [started(book) for _ in range(3)]
    book.finish(held[1])
    book.fail(held[0])
    assert told(book) == [(2, 1, None)]
    assert told(book) == [(1, 1, True)]
    book.finish(held[2])
    book.lost()
    assert told(book) == [(2, 1, None), (3, 1, None)]
    assert told(book) == [(1, 1, True)]


def test_a_batch_is_of_one_kind_and_one_size() -> None:
    book = Book(4, 0)
    for number in range(4):
        book.take(lease(number))
    held = [started(book) for _ in range(4)]
    book.finish(held[0])
    book.fail(held[1])
    book.finish(held[2])
    book.finish(held[3])
    assert [len(book.batch(2, give_back=True)) for _ in range(4)] == [2, 1, 1, 0]


def test_a_newer_lease_takes_the_place_of_the_older_at_every_stage() -> None:
    book = Book(1, 2)
    for number in (1, 2, 3):
        book.take(lease(number))
    running = started(book)
    book.take(lease(1, 2))
    book.take(lease(2, 2, start_by=200.0))
    assert (book.counts.superseded, book.counts.running, book.counts.waiting) == (2, 1, 2)
    book.expire(150.0)
    assert told(book) == [(3, 1, False)]
    book.finish(running)
    book.take(lease(1, 3))
    assert told(book) == [(1, 3, None)]
    assert book.settle([acked(proof(1, 3))]) == []
    assert whole(book.counts)


def test_the_verdict_on_a_replaced_lease_means_nothing() -> None:
    book = Book(1, 0)
    book.take(lease(1))
    book.finish(started(book))
    told(book)
    book.take(lease(1, 2))
    assert book.settle([refused(proof(1))]) == []
    assert (book.counts.refused, book.counts.pending) == (0, 1)
    told(book)
    book.settle([acked(proof(1, 2))])
    assert (book.counts.acknowledged, book.settled) == (1, True)


def test_a_lease_that_is_not_newer_is_ignored() -> None:
    book = Book(1, 1)
    book.take(lease(1, 2))
    book.take(lease(1, 2))
    book.take(lease(1, 1))
    assert (book.counts.received, book.counts.superseded, book.counts.waiting) == (1, 0, 1)


def test_a_delivery_whose_ack_came_too_late_is_not_handled_again() -> None:
    book = Book(1, 0)
    book.take(lease(1))
    book.finish(started(book))
    told(book)
    assert book.settle([refused(proof(1))]) == [refused(proof(1))]
    assert (book.counts.refused, book.counts.pending) == (1, 0)
    book.take(lease(1, 3))
    assert book.start(0.0) is None
    assert told(book) == [(1, 3, None)]
    book.settle([acked(proof(1, 3))])
    book.take(lease(1, 4))
    assert book.start(0.0) is not None, "once it is acknowledged it is forgotten"


def test_another_refusal_is_not_remembered() -> None:
    book = Book(1, 0)
    book.take(lease(1))
    book.finish(started(book))
    told(book)
    book.settle([refused(proof(1), ErrorCode.INVALID_PROOF)])
    book.take(lease(1, 2))
    assert book.start(0.0) is not None


def test_what_is_remembered_is_bounded() -> None:
    book = Book(1, 0)
    for number in range(FINISHED_REMEMBERED + 1):
        book.take(lease(number))
        book.finish(started(book))
        told(book)
        book.settle([refused(proof(number))])
    assert len(book._finished) == FINISHED_REMEMBERED
    book.take(lease(0, 2))
    assert book.start(0.0) is not None


def test_what_is_over_the_room_is_given_back() -> None:
    book = Book(1, 1)
    for number in (1, 2, 3):
        book.take(lease(number))
    assert told(book) == [(3, 1, False)]
    assert (book.counts.released, book.counts.waiting) == (1, 2)


def test_not_taking_gives_back_what_waits_and_what_comes() -> None:
    book = Book(1, 2)
    for number in (1, 2):
        book.take(lease(number))
    started(book)
    book.stop_taking()
    book.take(lease(3))
    assert book.capacity == 0
    assert told(book, give_back=False) == []
    assert not book.has_batch(give_back=False)
    assert told(book) == [(2, 1, False), (3, 1, False)]
    book.settle([released(proof(2)), released(proof(3))])
    assert (book.counts.running, book.counts.released, book.settled) == (1, 2, True)


def test_an_invalid_event_is_released_as_started() -> None:
    book = Book(1, 0)
    book.reject(proof(1))
    assert told(book) == [(1, 1, True)]
    assert (book.counts.received, book.counts.invalid) == (1, 1)


def test_capacity_leaves_out_what_an_earlier_connection_brought() -> None:
    book = Book(2, 2)
    assert book.capacity == 4
    for number in (1, 2, 3):
        book.take(lease(number))
    assert book.capacity == 4
    book.lost()
    assert book.capacity == 1
    book.take(lease(1, 2))
    assert book.capacity == 2, "the new lease is this connection's"
    book.fail(started(book))
    assert book.capacity == 2
    book.fail(started(book))
    assert book.capacity == 3


def test_what_waits_too_long_is_found() -> None:
    assert Book(1, 3).next_start_by is None
    book = Book(1, 3)
    book.take(lease(1))
    started(book)
    book.take(lease(2, start_by=20.0))
    book.take(lease(3, start_by=10.0))
    assert book.next_start_by == 10.0
    book.expire(9.99)
    assert book.counts.waiting == 2
    book.expire(10.0)
    assert told(book) == [(3, 1, False)]
    assert book.next_start_by == 20.0


class Consumer(RuleBasedStateMachine):
    """A book between a platform that leases as it likes and handlers that end as they like."""

    def __init__(self) -> None:
        super().__init__()
        self.book = Book(2, 3)
        self.epochs = dict.fromkeys(range(1, 8), 0)
        self.running: list[Held] = []
        self.sent: list[Report] = []
        self.answered_late: list[Report] = []
        self.done: set[str] = set()
        self.now = 0.0

    @rule(number=st.integers(1, 7), newer=st.booleans(), lasts=st.integers(1, 20))
    def deliver(self, number: int, newer: bool, lasts: int) -> None:
        self.epochs[number] += newer or not self.epochs[number]
        self.book.take(lease(number, self.epochs[number], self.now + lasts))

    @rule(number=st.integers(8, 10), epoch=st.integers(1, 3))
    def deliver_invalid(self, number: int, epoch: int) -> None:
        self.book.reject(proof(number, epoch))

    @rule()
    def start(self) -> None:
        held = self.book.start(self.now)
        if held is not None:
            assert held.lease.proof.delivery_id not in self.done, "its handler has finished already"
            assert held not in self.running
            self.running.append(held)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: Any) -> None:
        held = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.book.finish(held)
        self.done.add(held.lease.proof.delivery_id)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def fail(self, data: Any) -> None:
        self.book.fail(self.running.pop(data.draw(st.integers(0, len(self.running) - 1))))

    @rule(give_back=st.booleans(), size=st.integers(1, 4))
    def send(self, give_back: bool, size: int) -> None:
        batch = self.book.batch(size, give_back=give_back)
        assert len(batch) <= size
        assert len({one.started is None for one in batch}) <= 1
        assert give_back or not any(one.started is False for one in batch)
        self.sent.extend(batch)

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), verdict=st.sampled_from(["done", "stale", "invalid proof"]))
    def answer(self, data: Any, verdict: str) -> None:
        report = self.sent.pop(data.draw(st.integers(0, len(self.sent) - 1)))
        if verdict == "done":
            given = acked(report.proof) if report.started is None else released(report.proof)
        else:
            given = refused(report.proof, ErrorCode.STALE_EPOCH if verdict == "stale" else ErrorCode.INVALID_PROOF)
        self.book.settle([given])
        if report.started is None and verdict != "stale" and report.proof.epoch == self._newest(report):
            self.done.discard(report.proof.delivery_id)

    @rule()
    def lose(self) -> None:
        self.book.lost()
        self.sent.clear()

    @rule(seconds=st.integers(1, 10))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        self.book.expire(self.now)

    @rule()
    def stop_taking(self) -> None:
        self.book.stop_taking()
        assert self.book.counts.waiting == 0

    @rule()
    def take_again(self) -> None:
        self.book.taking = True

    def _newest(self, report: Report) -> int:
        return self.epochs[int(report.proof.delivery_id, 16)]

    @invariant()
    def every_lease_is_counted_once(self) -> None:
        assert whole(self.book.counts), self.book.counts

    @invariant()
    def bounds_hold(self) -> None:
        counts = self.book.counts
        assert counts.running == len(self.running) <= 2
        assert counts.waiting + counts.running <= 5
        assert 0 <= self.book.capacity <= 5

    @invariant()
    def every_pending_delivery_is_owed_or_under_way(self) -> None:
        reports = (*self.book._unsent.values(), *self.book._sent.values())
        owed = {one.proof.delivery_id for one in reports if one.started is None}
        assert len(owed) == self.book.counts.pending


TestConsumer = Consumer.TestCase
TestConsumer.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)

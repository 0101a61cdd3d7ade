"""A worker's connection against a platform in memory: what goes over the wire, and what comes back."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from orbit.protocol.attempt_v1 import AttemptState, Lease
from orbit.protocol.errors import ErrorCode
from orbit.protocol.limits import Limits
from orbit.sdk import (
    Disposition,
    DuplicateMessage,
    Finish,
    InvalidRequest,
    Outcome,
    WorkerClosed,
    WorkerDisconnected,
    WorkerError,
    WorkerProtocolError,
    WorkerTimeout,
    new_worker_message_id,
)
from tests.support.fake_peer import Cut, Drop, Hold, Ignore, Refuse, Say
from tests.support.fake_workers import FakeWorkers
from tests.support.worker_conversations import NOW
from tests.support.working import WAIT_S, at_work, ended, failure, working

PATIENT = Limits(control_s=3600.0)
KIB = 1024


def success(attempt: Any, result: str | None = '{"text":"A"}') -> Finish:
    return Finish(attempt=attempt, outcome=Outcome.SUCCEEDED, result=result)


async def test_a_task_from_assignment_to_receipt() -> None:
    async with FakeWorkers() as orbit, orbit.client() as client:
        registration = orbit.registration(cancellation_notifications=True)
        async with working(client, registration) as connection:
            assert connection.welcome.instance_id == registration.instance_id
            assert (connection.welcome.sequence, connection.welcome.capacity) == (None, 0)
            pushed = orbit.assign(orbit.assignment(b'{"text":"  a  ","n":1.10}'))
            assignment = await connection.next_assignment()
            assert assignment.attempt == pushed.attempt
            assert assignment.task.payload == {"text": "  a  ", "n": msgspec.Raw(b"1.10")}
            started = await connection.start(new_worker_message_id(), assignment.attempt)
            assert (started.disposition, started.receipt.operation) == (Disposition.APPLIED, "start")
            assert started.lease.execution_deadline() is not None
            renewed = await connection.renew(new_worker_message_id(), assignment.attempt)
            assert renewed.receipt.operation == "renew"
            assert renewed.lease.execution_deadline() is not None
            finish_id = new_worker_message_id()
            finished = await connection.finish(finish_id, success(assignment.attempt, '{"n": 1.10, "a": 1E2}'))
            assert (finished.disposition, finished.receipt.operation) == (Disposition.APPLIED, "finish")
            assert finished.lease.state is AttemptState.ENDED
            assert finished.lease.execution_deadline() is None
            assert connection.error is None
        assert orbit.saw("worker.hello") == [registration]
        assert [frame.type for frame in orbit.seen] == [
            "worker.hello",
            "worker.capacity",
            "task.start",
            "task.renew",
            "task.finish",
        ]
        assert orbit.seen[-1].message_id == finish_id
        # Blanks are dropped and members sorted; the text of the numbers is as the caller wrote it.
        assert orbit.saw("task.finish") == [success(assignment.attempt, '{"a":1E2,"n":1.10}')]


async def test_capacity_is_what_the_caller_says_and_the_answer_what_the_platform_says() -> None:
    async with at_work(capacity=None) as (orbit, connection):
        first = await connection.capacity("1" * 32, sequence=1, capacity=3, drain=False)
        assert (first.sequence, first.capacity, first.drain, first.revision) == (1, 3, False, 1)
        again = await connection.capacity("2" * 32, sequence=1, capacity=3, drain=False)
        assert again.sequence == 1
        drained = await connection.capacity("3" * 32, sequence=2, capacity=0, drain=True)
        assert (drained.capacity, drained.drain) == (0, True)
        assert [(one.sequence, one.capacity, one.drain) for one in orbit.saw("worker.capacity")] == [
            (1, 3, False),
            (1, 3, False),
            (2, 0, True),
        ]
        error = await failure(connection.capacity("4" * 32, sequence=1, capacity=3, drain=False), InvalidRequest)
        assert str(error) == "body.sequence: must not go back"
        assert connection.error is None


async def test_an_attempt_is_resumed_before_the_first_capacity_and_not_extended() -> None:
    async with FakeWorkers() as orbit, orbit.client() as client:
        registration = orbit.registration()
        async with working(client, registration) as connection:
            orbit.assign()
            attempt = (await connection.next_assignment()).attempt
            started = await connection.start("5" * 32, attempt)
        async with working(client, registration, capacity=None) as connection:
            assert connection.welcome.revision == 2
            lease = await connection.resume(new_worker_message_id(), attempt)
            assert (lease.state, lease.active) == (AttemptState.RUNNING, True)
            assert lease.execution_deadline() is not None
            repeated = await connection.start("5" * 32, attempt)
            assert repeated.receipt == started.receipt
        assert orbit.saw("worker.hello") == [registration, registration]
        assert orbit.effects == [("task.start", attempt.attempt_id)]


async def test_cancellations_are_read_apart_from_assignments() -> None:
    async with at_work(cancellation_notifications=True) as (orbit, connection):
        work = orbit.assign()
        wish = orbit.cancel(work.attempt)
        assert await connection.next_cancellation() == wish
        assert (await connection.next_assignment()).attempt.identity == wish.identity


async def test_who_did_not_ask_for_cancellations_does_not_wait_for_them() -> None:
    async with at_work() as (_, connection):
        error = await failure(connection.next_cancellation(), InvalidRequest)
        assert "cancellation_notifications" in str(error)


async def test_the_time_of_the_whole_call_counts_against_the_lease() -> None:
    async with at_work(limits=PATIENT) as (orbit, connection):
        attempt = orbit.assign().attempt
        answer = asyncio.Event()
        orbit.misbehave("task.start", Hold(answer))
        before = time.monotonic()
        starting = asyncio.create_task(connection.start(new_worker_message_id(), attempt))
        await orbit.until(lambda: orbit.saw("task.start") != [])
        answered = time.monotonic()
        answer.set()
        deadline = (await starting).lease.execution_deadline()
        assert deadline is not None
        assert before + 29.75 <= deadline < answered + 29.75


def no_longer(**changes: Any) -> Any:
    return lambda lease: replace(lease, **changes)


@pytest.mark.parametrize(
    "change",
    [
        no_longer(active=False, state=AttemptState.ENDED),
        no_longer(state=AttemptState.LEASED),
        no_longer(cancel_requested_at=NOW),
        no_longer(lease_until=NOW),
    ],
)
async def test_an_old_receipt_gives_no_right_to_run(change: Any) -> None:
    def changed(lease: Lease) -> Lease:
        return change(lease)  # type: ignore[no-any-return]  # a lambda's

    async with at_work() as (orbit, connection):
        attempt = orbit.assign().attempt
        first = await connection.start("6" * 32, attempt)
        assert first.lease.execution_deadline() is not None
        orbit.change_lease = changed
        again = await connection.start("6" * 32, attempt)
        assert again.receipt == first.receipt
        assert again.receipt.lease_until is not None
        assert again.lease.execution_deadline() is None
        assert (await connection.resume(new_worker_message_id(), attempt)).execution_deadline() is None


async def test_a_refusal_has_its_code_and_costs_only_its_request() -> None:
    async with at_work() as (orbit, connection):
        attempt = orbit.assign().attempt
        for code in (ErrorCode.RATE_LIMITED, ErrorCode.STATE_CONFLICT, ErrorCode.UNAVAILABLE):
            orbit.misbehave("task.start", Refuse(code))
            error = await failure(connection.start("7" * 32, attempt), WorkerError)
            assert (error.code, str(error)) == (code, f"the platform refused it: {code}")
        # The id is free again: the same operation is asked once more on the same connection.
        assert (await connection.start("7" * 32, attempt)).disposition == Disposition.APPLIED


async def test_a_message_id_in_flight_has_one_waiter() -> None:
    async with at_work(limits=PATIENT) as (orbit, connection):
        attempt = orbit.assign().attempt
        answer = asyncio.Event()
        orbit.misbehave("task.start", Hold(answer))
        first = asyncio.create_task(connection.start("8" * 32, attempt))
        await orbit.until(lambda: orbit.saw("task.start") != [])
        error = await failure(connection.start("8" * 32, attempt), DuplicateMessage)
        assert str(error) == f"request {'8' * 32} is in flight"
        error = await failure(connection.renew("8" * 32, attempt), DuplicateMessage)
        answer.set()
        assert (await first).disposition == Disposition.APPLIED
        assert [frame.type for frame in orbit.seen if frame.message_id == "8" * 32] == ["task.start"]
        assert (await connection.start("8" * 32, attempt)).disposition == Disposition.APPLIED


async def test_cancelling_a_wait_only_stops_waiting() -> None:
    async with at_work(cancellation_notifications=True) as (orbit, connection):
        for wait in (connection.next_assignment, connection.next_cancellation):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(wait(), 0.01)
        work = orbit.assign()
        wish = orbit.cancel(work.attempt)
        assert (await connection.next_assignment()).attempt == work.attempt
        assert await connection.next_cancellation() == wish


async def test_a_request_that_is_cancelled_after_it_was_sent_ends_the_connection() -> None:
    async with FakeWorkers(limits=PATIENT) as orbit, orbit.client() as client:
        async with working(client, orbit.registration()) as connection:
            work = orbit.assign()
            orbit.assign()
            await connection.resume(new_worker_message_id(), work.attempt)
            orbit.misbehave("task.start", Drop())
            starting = asyncio.create_task(connection.start("9" * 32, work.attempt))
            await orbit.until(lambda: orbit.effects != [])
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
            # At once, before the reader has noticed: nothing is delivered from the buffer.
            await failure(connection.next_assignment(), WorkerDisconnected)
            error = await ended(connection, WorkerDisconnected)
            assert str(error) == "a request was cancelled after it was sent"
        async with working(client, orbit.registration(), capacity=None) as connection:
            assert (await connection.start("9" * 32, work.attempt)).lease.execution_deadline() is not None
        assert orbit.effects == [("task.start", work.attempt.attempt_id)]


async def test_a_callers_own_deadline_is_a_cancellation() -> None:
    async with at_work(limits=PATIENT) as (orbit, connection):
        orbit.misbehave("task.start", Ignore())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await connection.start(new_worker_message_id(), orbit.assign().attempt)
        await ended(connection, WorkerDisconnected)


async def test_no_answer_in_time_ends_the_connection() -> None:
    async with at_work(limits=Limits(control_s=0.2)) as (orbit, connection):
        orbit.misbehave("task.start", Ignore())
        error = await failure(connection.start(new_worker_message_id(), orbit.assign().attempt), WorkerTimeout)
        assert isinstance(error, TimeoutError)
        assert str(error) == "no answer in time"
        await ended(connection, WorkerDisconnected)


async def test_closing_delivers_nothing_more_and_fails_what_is_under_way() -> None:
    async with FakeWorkers(limits=PATIENT) as orbit, orbit.client() as client:
        connection = await client.dial_worker(orbit.registration(cancellation_notifications=True))
        await connection.capacity(new_worker_message_id(), sequence=1, capacity=4, drain=False)
        work = orbit.assign()
        orbit.cancel(work.attempt)
        await connection.resume(new_worker_message_id(), work.attempt)
        orbit.misbehave("task.start", Ignore())
        asking = asyncio.create_task(connection.start(new_worker_message_id(), work.attempt))
        await orbit.until(lambda: orbit.saw("task.start") != [])
        done = asyncio.create_task(connection.done())
        await connection.close()
        with pytest.raises(WorkerClosed):
            await asking
        await asyncio.wait_for(done, WAIT_S)
        assert type(connection.error) is WorkerClosed
        await failure(connection.next_assignment(), WorkerClosed)
        await failure(connection.next_cancellation(), WorkerClosed)
        await failure(connection.resume(new_worker_message_id(), work.attempt), WorkerClosed)
        await connection.close()
        assert connection.welcome.revision == 1
        await orbit.until(lambda: not orbit.connection.open)


async def test_a_reader_that_waits_is_told_of_the_end() -> None:
    async with at_work(cancellation_notifications=True) as (orbit, connection):
        waiting = [
            asyncio.create_task(connection.next_assignment()),
            asyncio.create_task(connection.next_cancellation()),
        ]
        await asyncio.sleep(0)
        orbit.connection.socket.transport.abort()
        results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), WAIT_S)
        assert [type(one) for one in results] == [WorkerDisconnected, WorkerDisconnected]


async def test_a_lost_connection_leaves_the_outcome_open_and_the_same_id_settles_it() -> None:
    async with FakeWorkers(limits=PATIENT) as orbit, orbit.client() as client:
        registration = orbit.registration()
        async with working(client, registration) as connection:
            attempt = orbit.assign().attempt
            report = success(attempt)
            orbit.misbehave("task.finish", Cut())
            error = await failure(connection.finish("c" * 32, report), WorkerDisconnected)
            assert str(error) == "the connection was lost"
        async with working(client, registration, capacity=None) as connection:
            settled = await connection.finish("c" * 32, report)
            assert settled.receipt == orbit.receipts[attempt.attempt_id, "c" * 32].receipt
        assert orbit.effects == [("task.finish", attempt.attempt_id)]
        assert orbit.saw("task.finish") == [report, report]


async def test_a_session_that_the_platform_ends_is_no_refusal_of_what_is_in_flight() -> None:
    async with at_work(limits=PATIENT) as (orbit, connection):
        attempt = orbit.assign().attempt
        orbit.misbehave("task.start", Ignore())
        asking = asyncio.create_task(connection.start(new_worker_message_id(), attempt))
        await orbit.until(lambda: orbit.saw("task.start") != [])
        orbit.connection.send(orbit.connection.session.fatal(ErrorCode.SESSION_FENCED, "another connection"))
        with pytest.raises(WorkerDisconnected, match="the platform ended the session: SESSION_FENCED"):
            await asyncio.wait_for(asking, WAIT_S)
        error = await ended(connection, WorkerError)
        assert str(error) == "the platform refused it: SESSION_FENCED"
        await failure(connection.start(new_worker_message_id(), attempt), WorkerError)
        await failure(connection.next_assignment(), WorkerError)


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        "[]",
        '{"protocol_version":"2","type":"ack","message_id":"' + "1" * 32 + '"}',
        '{"protocol_version":"1","type":"ack","message_id":"' + "1" * 32 + '","body":{}}',
    ],
)
async def test_a_message_that_breaks_the_protocol_ends_the_connection(text: str) -> None:
    async with FakeWorkers(limits=PATIENT) as orbit, orbit.client() as client:
        async with working(client, orbit.registration()) as connection:
            orbit.misbehave("task.start", Say(text))
            error = await failure(
                connection.start(new_worker_message_id(), orbit.assign().attempt), WorkerProtocolError
            )
            assert text not in str(error)
            await ended(connection, WorkerProtocolError)
        await orbit.until(lambda: not orbit.connection.open)
        assert orbit.connection.socket.close_code == 1002


async def test_work_for_another_handler_breaks_the_protocol() -> None:
    async with at_work() as (orbit, connection):
        orbit.rewrite = lambda data: data.replace(b'"text.normalize"', b'"text.other"')
        work = orbit.assignment()
        data = orbit.connection.session.push("task.assign", work, new_worker_message_id())
        orbit.connection.send(orbit.rewrite(data))
        await ended(connection, WorkerProtocolError)


async def test_a_newer_platforms_members_are_ignored() -> None:
    async with at_work() as (orbit, connection):
        work = orbit.assignment()
        data = orbit.connection.session.push("task.assign", work, new_worker_message_id())
        orbit.connection.send(data.replace(b'"handler":', b'"not_before":"2031-01-01T00:00:00Z","handler":'))
        assert (await connection.next_assignment()).attempt == work.attempt


async def test_a_failure_that_may_be_tried_again_says_so() -> None:
    async with at_work() as (orbit, connection):
        attempt = orbit.assign().attempt
        report = Finish(attempt=attempt, outcome=Outcome.FAILED, error_code="BUSY", retryable=True, result='{"a":1}')
        await connection.finish(new_worker_message_id(), report)
        assert orbit.saw("task.finish") == [report]

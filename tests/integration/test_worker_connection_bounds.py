"""What a worker's connection takes and sends at most: requests, pushes, frames, results, silence."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orbit.protocol.limits import Limits
from orbit.sdk import (
    Disposition,
    Finish,
    InvalidRequest,
    Outcome,
    WorkerBackpressure,
    WorkerBusy,
    WorkerClosed,
    WorkerDisconnected,
    WorkerProtocolError,
    new_worker_message_id,
)
from tests.support.fake_peer import Ignore
from tests.support.fake_workers import FakeWorkers
from tests.support.working import WAIT_S, at_work, ended, failure, working

PATIENT = Limits(control_s=3600.0)
KIB = 1024


def success(attempt: Any, result: str | None = '{"text":"A"}') -> Finish:
    return Finish(attempt=attempt, outcome=Outcome.SUCCEEDED, result=result)


async def test_the_thirty_third_request_is_not_sent() -> None:
    async with FakeWorkers(limits=PATIENT) as orbit, orbit.client() as client:
        async with working(client, orbit.registration()) as connection:
            attempts = [orbit.assignment().attempt for _ in range(33)]
            for _ in range(32):
                orbit.misbehave("task.renew", Ignore())
            asked = [asyncio.create_task(connection.renew(new_worker_message_id(), one)) for one in attempts[:32]]
            await orbit.until(lambda: len(orbit.saw("task.renew")) == 32)
            error = await failure(connection.renew(new_worker_message_id(), attempts[32]), WorkerBusy)
            assert str(error) == "32 requests are in flight"
            await failure(connection.capacity(new_worker_message_id(), sequence=2, capacity=1, drain=False), WorkerBusy)
            assert connection.error is None
            assert not any(one.done() for one in asked)
            await connection.close()
            assert [type(one) for one in await asyncio.gather(*asked, return_exceptions=True)] == [WorkerClosed] * 32
        assert len(orbit.saw("task.renew")) == 32
        assert len(orbit.saw("worker.capacity")) == 1


async def test_the_ninth_unread_assignment_ends_the_connection() -> None:
    async with at_work(limits=PATIENT, cancellation_notifications=True) as (orbit, connection):
        pushed = [orbit.assign() for _ in range(8)]
        # The answer comes behind the pushes on the wire: they have arrived.
        await connection.resume(new_worker_message_id(), pushed[0].attempt)
        assert connection.error is None
        assert (await connection.next_assignment()).attempt == pushed[0].attempt
        orbit.assign()
        await connection.resume(new_worker_message_id(), pushed[0].attempt)
        orbit.misbehave("task.renew", Ignore())
        asking = asyncio.create_task(connection.renew(new_worker_message_id(), pushed[0].attempt))
        await orbit.until(lambda: orbit.saw("task.renew") != [])
        orbit.assign()
        error = await ended(connection, WorkerBackpressure)
        assert str(error) == "8 assignments were not read"
        # Eight are in the buffer; none of them is delivered any more.
        await failure(connection.next_assignment(), WorkerBackpressure)
        await failure(connection.next_cancellation(), WorkerBackpressure)
        with pytest.raises(WorkerBackpressure):
            await asking
        await failure(connection.start(new_worker_message_id(), pushed[0].attempt), WorkerBackpressure)
        await orbit.until(lambda: not orbit.connection.open)


async def test_the_thirty_third_unread_cancellation_ends_the_connection() -> None:
    async with at_work(cancellation_notifications=True) as (orbit, connection):
        attempt = orbit.assign().attempt
        for _ in range(32):
            orbit.cancel(attempt)
        await connection.resume(new_worker_message_id(), attempt)
        assert connection.error is None
        orbit.cancel(attempt)
        error = await ended(connection, WorkerBackpressure)
        assert str(error) == "32 cancellations were not read"
        await failure(connection.next_assignment(), WorkerBackpressure)


async def test_a_burst_for_a_reader_that_waits_is_no_backpressure() -> None:
    async with at_work() as (orbit, connection):
        waiting = [asyncio.create_task(connection.next_assignment()) for _ in range(4)]
        await asyncio.sleep(0)
        pushed = [orbit.assign() for _ in range(12)]
        read = [(await asyncio.wait_for(one, WAIT_S)).attempt for one in waiting]
        read += [(await asyncio.wait_for(connection.next_assignment(), WAIT_S)).attempt for _ in range(8)]
        assert read == [one.attempt for one in pushed]
        assert connection.error is None


async def test_what_waits_to_be_sent_is_taken_back_by_cancelling() -> None:
    async with FakeWorkers(limits=PATIENT) as orbit, orbit.client() as client:
        async with working(client, orbit.registration()) as connection:
            # 6 MiB into a socket that nobody reads: one request is being sent, the rest waits for its turn.
            orbit.connection.socket.transport.pause_reading()
            big = '"' + "x" * (256 * KIB - 2) + '"'
            reports = [success(orbit.assignment().attempt, big) for _ in range(24)]
            sending = [asyncio.create_task(connection.finish(new_worker_message_id(), one)) for one in reports]
            late = asyncio.create_task(connection.resume("a" * 32, reports[0].attempt))
            await asyncio.sleep(0)
            late.cancel()
            with pytest.raises(asyncio.CancelledError):
                await late
            assert connection.error is None
            orbit.connection.socket.transport.resume_reading()
            answers = await asyncio.wait_for(asyncio.gather(*sending), WAIT_S)
            assert [one.disposition for one in answers] == [Disposition.APPLIED] * 24
            # The id was never in flight, so it is free.
            await connection.resume("a" * 32, reports[0].attempt)
        assert [frame.type for frame in orbit.seen].count("worker.resume") == 1


async def test_what_never_has_its_turn_is_not_sent() -> None:
    async with FakeWorkers(limits=PATIENT) as orbit, orbit.client() as client:
        async with working(client, orbit.registration()) as connection:
            attempt = orbit.assign().attempt
            async with connection._conversation._sending:  # as if another request were being sent
                connection._conversation._limits = Limits(control_s=0.05)
                error = await failure(connection.start("b" * 32, attempt), WorkerBusy)
            assert str(error) == "its turn did not come in time"
            connection._conversation._limits = PATIENT
            assert connection.error is None
            await connection.start("b" * 32, attempt)
        assert len(orbit.saw("task.start")) == 1


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ("null", "result: must not be null; leave it out"),
        (" null ", "result: must not be null; leave it out"),
        ('"' + "x" * (256 * KIB - 1) + '"', "result: is larger than 262144 bytes"),
        ("[" * 29 + "]" * 29, "result: "),
        ('{"a":1,"a":2}', "result: is not strict JSON"),
        ('"\\ud800"', "result: is not strict JSON"),
        ('"\ud800"', "result: is not strict JSON"),
        ("NaN", "result: is not strict JSON"),
        ("{", "result: is not strict JSON"),
        ("", "result: is not strict JSON"),
    ],
)
async def test_what_is_no_result_is_refused_before_anything_is_sent(result: str, says: str) -> None:
    async with at_work() as (orbit, connection):
        attempt = orbit.assign().attempt
        error = await failure(connection.finish(new_worker_message_id(), success(attempt, result)), InvalidRequest)
        assert str(error).startswith(says)
        assert error.__context__ is None
        assert connection.error is None
        await connection.resume(new_worker_message_id(), attempt)
        assert orbit.saw("task.finish") == []


@pytest.mark.parametrize(
    "result",
    [
        '"' + "x" * (256 * KIB - 2) + '"',
        "[" * 28 + "]" * 28,
        "1e999999",
        "-0.10",
        "false",
        '"\u4e2d"',
    ],
)
async def test_a_result_at_the_border_is_sent_as_it_is(result: str) -> None:
    async with at_work() as (orbit, connection):
        attempt = orbit.assign().attempt
        await connection.finish(new_worker_message_id(), success(attempt, result))
        assert [one.result for one in orbit.saw("task.finish")] == [result]


@pytest.mark.parametrize(
    "changes",
    [
        {"outcome": Outcome.FAILED},
        {"outcome": Outcome.UNKNOWN},
        {"outcome": Outcome.CANCELLED, "error_code": ""},
        {"outcome": Outcome.SUCCEEDED, "error_code": "OOPS"},
        {"outcome": Outcome.FAILED, "error_code": "oops"},
        {"outcome": Outcome.UNKNOWN, "error_code": "OOPS", "retryable": True},
    ],
)
async def test_a_report_that_breaks_a_rule_is_refused_before_anything_is_sent(changes: dict[str, Any]) -> None:
    async with at_work() as (orbit, connection):
        attempt = orbit.assign().attempt
        report = Finish(**{"attempt": attempt, **changes})
        error = await failure(connection.finish(new_worker_message_id(), report), InvalidRequest)
        assert str(error).startswith("body.")
        await failure(connection.start("not an id", attempt), InvalidRequest)
        await connection.resume(new_worker_message_id(), attempt)
        assert orbit.saw("task.finish") + orbit.saw("task.start") == []


async def test_a_frame_of_512_kib_passes_and_one_byte_more_closes_with_1009() -> None:
    def frame(size: int) -> bytes:
        empty = orbit.connection.session.push("task.assign", orbit.assignment(b'""'), "1" * 32)
        work = orbit.assignment(b'"' + b"x" * (size - len(empty)) + b'"')
        data = orbit.connection.session.push("task.assign", work, "1" * 32)
        assert len(data) == size
        return data

    async with at_work() as (orbit, connection):
        orbit.connection.send(frame(512 * KIB))
        await connection.next_assignment()
        # The fake's own session writes no larger one: an insignificant blank makes it so.
        orbit.connection.send(frame(512 * KIB) + b" ")
        error = await ended(connection, WorkerProtocolError)
        assert str(error) == "closed by this end (close code 1009)"
        await orbit.until(lambda: not orbit.connection.open)
        assert orbit.connection.socket.close_code == 1009


async def test_a_silent_link_is_given_up_after_the_idle_time() -> None:
    assert Limits().read_idle_s == 60.0
    async with at_work(limits=Limits(read_idle_s=0.2)) as (_, connection):
        error = await ended(connection, WorkerDisconnected)
        assert str(error) == "nothing came for too long"

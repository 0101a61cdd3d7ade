"""A worker's connection on a real platform: sessions that fence, drain that stays, work that comes back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import Raw

from orbit.protocol.http_v1 import RetryPolicy
from orbit.protocol.limits import Limits
from orbit.protocol.values import new_id
from orbit.sdk import (
    AttemptState,
    Disposition,
    Finish,
    OrbitClient,
    Outcome,
    WorkerBackpressure,
    WorkerConnection,
    WorkerError,
    WorkerRegistration,
    new_worker_message_id,
    new_worker_registration,
)
from tests.support.clients import saved, task
from tests.support.platform import fresh_credentials, running_node
from tests.support.worker_client import TEXT
from tests.support.working import WAIT_S, ended, failure, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orbit.mysql.dsn import DSN
    from tests.support.platform import Node


@pytest.fixture
async def client(node: Node, credentials: dict[str, Any], tmp_path: Path) -> AsyncIterator[OrbitClient]:
    async with OrbitClient(node.base_url, saved(tmp_path / "credentials.json", credentials)) as opened:
        yield opened


@pytest.fixture
def registration(client: OrbitClient) -> WorkerRegistration:
    return new_worker_registration(client.credentials.queue_id, 16, [TEXT], cancellation_notifications=True)


async def submitted(client: OrbitClient, **given: Any) -> str:
    return (await client.submit_task(new_id(), task(client, **given))).task.task_id


async def taken(connection: WorkerConnection) -> Any:
    return await asyncio.wait_for(connection.next_assignment(), WAIT_S)


async def capacity(connection: WorkerConnection, sequence: int, room: int, *, drain: bool = False) -> Any:
    return await connection.capacity(new_worker_message_id(), sequence=sequence, capacity=room, drain=drain)


async def test_a_task_from_submission_to_result(client: OrbitClient, registration: WorkerRegistration) -> None:
    task_id = await submitted(client, priority=3)
    async with working(client, registration) as connection:
        assignment = await taken(connection)
        assert (assignment.task.task_id, assignment.task.priority) == (task_id, 3)
        assert bytes(assignment.task.payload["n"]) == b"18446744073709551617.10"
        started = await connection.start(new_worker_message_id(), assignment.attempt)
        first = started.lease.execution_deadline()
        renewed = await connection.renew(new_worker_message_id(), assignment.attempt)
        second = renewed.lease.execution_deadline()
        assert first is not None
        assert second is not None
        assert second > first
        report = Finish(attempt=assignment.attempt, outcome=Outcome.SUCCEEDED, result='{"n": 1.10}')
        finished = await connection.finish(new_worker_message_id(), report)
        assert (finished.disposition, finished.receipt.task_state) == (Disposition.APPLIED, "SUCCEEDED")
        assert (finished.lease.state, finished.lease.execution_deadline()) == (AttemptState.ENDED, None)
    now = await client.get_task(task_id)
    assert (now.state, now.attempt_count) == ("SUCCEEDED", 1)
    assert now.result == Raw(b'{"n":1.10}')


async def test_a_new_session_of_the_same_process_fences_the_old_one(
    client: OrbitClient, registration: WorkerRegistration
) -> None:
    await submitted(client)
    async with working(client, registration) as old:
        attempt = (await taken(old)).attempt
        await old.start("1" * 32, attempt)
        async with working(client, registration, capacity=None) as new:
            assert new.welcome.revision == old.welcome.revision + 1
            # Before any capacity: what is under way is proved, and its receipts are there.
            lease = await new.resume(new_worker_message_id(), attempt)
            assert (lease.state, lease.active) == (AttemptState.RUNNING, True)
            assert lease.execution_deadline() is not None
            assert (await new.start("1" * 32, attempt)).lease.execution_deadline() is not None
            assert (await ended(old, WorkerError)).args == ("SESSION_FENCED",)
            await failure(old.next_assignment(), WorkerError)
            await failure(old.renew(new_worker_message_id(), attempt), WorkerError)
            report = Finish(attempt=attempt, outcome=Outcome.FAILED, error_code="NO_TEXT")
            assert (await new.finish(new_worker_message_id(), report)).receipt.task_state == "FAILED"


async def test_a_copy_with_another_secret_gets_no_session(
    client: OrbitClient, registration: WorkerRegistration
) -> None:
    async with working(client, registration) as connection:
        stranger = new_worker_registration(registration.queue_id, 16, [TEXT], cancellation_notifications=True)
        body = {**stranger.to_body(), "instance_id": registration.instance_id}
        error = await failure(client.dial_worker(WorkerRegistration.parse(body)), WorkerError)
        assert error.code == "INVALID_PROOF"
        body = {**registration.to_body(), "capacity": 5}
        error = await failure(client.dial_worker(WorkerRegistration.parse(body)), WorkerError)
        assert error.code == "IDEMPOTENCY_CONFLICT"
        await capacity(connection, 2, 1)
        assert connection.error is None


async def test_a_drain_stays_over_a_reconnect_and_is_not_undone(
    client: OrbitClient, registration: WorkerRegistration
) -> None:
    await submitted(client)
    async with working(client, registration) as connection:
        attempt = (await taken(connection)).attempt
        await connection.start(new_worker_message_id(), attempt)
        assert (await capacity(connection, 2, 0, drain=True)).drain
    waiting = await submitted(client)
    async with working(client, registration, capacity=None) as connection:
        assert connection.welcome.drain
        error = await failure(capacity(connection, 1, 4), WorkerError)
        assert error.code == "STATE_CONFLICT"
        assert (await capacity(connection, 2, 4, drain=True)).drain
        # What was under way is still collected.
        report = Finish(attempt=attempt, outcome=Outcome.SUCCEEDED, result="true")
        assert (await connection.finish(new_worker_message_id(), report)).disposition is Disposition.APPLIED
    assert (await client.get_task(waiting)).state == "WAITING"


async def test_what_a_worker_did_not_read_goes_to_another(platform_dsn: DSN, tmp_path: Path) -> None:
    limits = Limits(task_lease_s=1.0, node_poll_s=0.1)
    async with running_node(platform_dsn, limits=limits) as node:
        content = saved(tmp_path / "own.json", await fresh_credentials(platform_dsn))
        async with OrbitClient(node.base_url, content) as client:
            twice = RetryPolicy(max_attempts=2, initial_delay_ms=1, max_delay_ms=1)
            tasks = {await submitted(client, retry=twice) for _ in range(9)}
            async with working(client, new_worker_registration(content.queue_id, 16, [TEXT]), capacity=16) as deaf:
                await ended(deaf, WorkerBackpressure)
                await failure(deaf.next_assignment(), WorkerBackpressure)
            assert {(await client.get_task(one)).state for one in tasks} <= {"LEASED", "WAITING"}
            async with working(client, new_worker_registration(content.queue_id, 16, [TEXT]), capacity=16) as other:
                read = [await taken(other) for _ in range(9)]
                assert {one.task.task_id for one in read} == tasks
                assert {(one.task.attempt_number, one.attempt.epoch) for one in read} == {(2, 2)}


async def test_a_cancelled_task_is_told_of_and_gives_no_right_to_go_on(
    client: OrbitClient, registration: WorkerRegistration
) -> None:
    task_id = await submitted(client)
    async with working(client, registration) as connection:
        attempt = (await taken(connection)).attempt
        assert (await connection.start("4" * 32, attempt)).lease.execution_deadline() is not None
        await client.cancel_task(task_id)
        wish = await asyncio.wait_for(connection.next_cancellation(), WAIT_S)
        assert wish.identity == attempt.identity
        lease = await connection.resume(new_worker_message_id(), attempt)
        assert (lease.active, lease.state) == (True, AttemptState.RUNNING)
        assert lease.cancel_requested_at == wish.cancel_requested_at
        assert lease.execution_deadline() is None
        assert (await connection.start("4" * 32, attempt)).lease.execution_deadline() is None
        report = Finish(attempt=attempt, outcome=Outcome.CANCELLED, error_code="STOPPED")
        assert (await connection.finish(new_worker_message_id(), report)).receipt.task_state == "CANCELLED"


async def test_numbers_out_of_bounds_are_the_platforms_to_refuse(
    client: OrbitClient, registration: WorkerRegistration
) -> None:
    await submitted(client)
    async with working(client, registration) as connection:
        attempt = (await taken(connection)).attempt
        await connection.start(new_worker_message_id(), attempt)
        report = Finish(attempt=attempt, outcome=Outcome.SUCCEEDED, result="1e10000")
        error = await failure(connection.finish(new_worker_message_id(), report), WorkerError)
        assert error.code == "INVALID_ARGUMENT"
        report = Finish(attempt=attempt, outcome=Outcome.SUCCEEDED, result="1e9999")
        assert (await connection.finish(new_worker_message_id(), report)).disposition is Disposition.APPLIED


async def test_thirty_two_operations_at_once_are_all_answered(
    client: OrbitClient, registration: WorkerRegistration
) -> None:
    await submitted(client)
    async with working(client, registration) as connection:
        attempt = (await taken(connection)).attempt
        await connection.start(new_worker_message_id(), attempt)
        renewals = [connection.renew(new_worker_message_id(), attempt) for _ in range(32)]
        answers = await asyncio.wait_for(asyncio.gather(*renewals), WAIT_S)
        assert {one.receipt.operation for one in answers} == {"renew"}
        assert all(one.lease.execution_deadline() is not None for one in answers)

"""A node and its MySQL die with attempts in flight and come back: every task ends as the table says."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from orbit.protocol.attempt_v1 import AttemptState, Disposition, Outcome
from orbit.protocol.http_v1 import TaskState
from orbit.protocol.values import new_id
from orbit.sandbox import PLATFORM_PRIVILEGES
from orbit.sandbox.server import admin_cursor
from orbit.server.migrate import migrate
from tests.support.platform import Api, NodeProcess, fresh_credentials
from tests.support.worker_client import WorkerClient, registration, report

if TYPE_CHECKING:
    from orbit.mysql.dsn import DSN
    from orbit.protocol.attempt_v1 import Attempt
    from orbit.sandbox import MySQLServer

DEADLINE_S = 30.0
SLOW = {"max_attempts": 3, "initial_delay_ms": 60_000, "max_delay_ms": 60_000}


def change(admin: DSN, statement: str, *parameters: Any) -> None:
    """Change the database as its administrator."""
    with admin_cursor(admin) as cursor:
        cursor.execute(statement, parameters)


async def until(api: Api, task_id: str, state: str) -> dict[str, Any]:
    """Wait until the task is in this state; the task."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            task: dict[str, Any] = (await api.http.get(f"/v1/tasks/{task_id}")).json()
            if task["state"] == state:
                return task
            await asyncio.sleep(0.05)


async def taken(worker: WorkerClient, api: Api, **asked: Any) -> tuple[str, Attempt]:
    """Submit a task and get it."""
    task_id: str = (await api.submit(**asked)).json()["task"]["task_id"]
    assignment = await worker.assignment()
    assert assignment.task.task_id == task_id
    return task_id, assignment.attempt


async def test_attempts_outlive_the_platform_that_gave_them(own_mysql: MySQLServer) -> None:
    database = own_mysql.create_database("restart")
    dsn = own_mysql.create_account(database, PLATFORM_PRIVILEGES)
    admin = own_mysql.admin.with_database(dsn.database)
    await asyncio.to_thread(migrate, dsn)
    credentials = await fresh_credentials(dsn)
    control = own_mysql.control
    assert control is not None
    hello = registration(credentials["queue_id"])
    async with NodeProcess(dsn) as node, Api(node.base_url, credentials) as api:
        async with WorkerClient.open(node.base_url, credentials["token"], hello, capacity=8) as worker:
            _, kept_attempt = await taken(worker, api)
            await worker.start(kept_attempt)
            review, review_attempt = await taken(worker, api, retry=SLOW)
            await worker.start(review_attempt)
            again, again_attempt = await taken(worker, api, retry=SLOW, recovery_safety="IDEMPOTENT")
            await worker.start(again_attempt)
            unstarted, _ = await taken(worker, api)
            waiting, waiting_attempt = await taken(worker, api, retry=SLOW)
            await worker.start(waiting_attempt)
            failed_id = new_id()
            failed = report(waiting_attempt, Outcome.FAILED, retryable=True)
            first = await worker.finish(failed, failed_id)
        due = (await until(api, waiting, "WAITING"))["available_at"]

        await node.kill()
        await asyncio.to_thread(control.kill)
        await asyncio.to_thread(control.start)
        await node.start()

        # The schedule of a retry and every receipt are in the database.
        assert (await until(api, waiting, "WAITING"))["available_at"] == due
        async with WorkerClient.open(node.base_url, credentials["token"], hello) as worker:
            assert worker.welcome is not None
            assert worker.welcome.revision == 2
            lease = await worker.resume(kept_attempt)
            assert (lease.state, lease.active) == (AttemptState.RUNNING, True)
            assert (await worker.finish(failed, failed_id)).receipt == first.receipt
            done = await worker.finish(report(kept_attempt, result="1"))
            assert (done.disposition, done.receipt.task_state) == (Disposition.APPLIED, TaskState.SUCCEEDED)
            # The worker has forgotten the others: their leases run out.
            change(admin, "UPDATE attempts SET lease_until = UTC_TIMESTAMP(6) WHERE state != 'ENDED'")
            assert (await until(api, review, "NEEDS_REVIEW"))["effect_uncertain"] is True
            assert (await until(api, again, "WAITING"))["effect_uncertain"] is True
            assert (await until(api, unstarted, "FAILED"))["error_code"] == "UNSTARTED_LEASE_EXPIRED"
            change(admin, "UPDATE tasks SET available_at = UTC_TIMESTAMP(6) WHERE state = 'WAITING'")
            await worker.capacity(8)
            seconds = {one.task.task_id: one for one in [await worker.assignment(), await worker.assignment()]}
            assert set(seconds) == {again, waiting}
            assert {one.attempt.epoch for one in seconds.values()} == {2}
            assert seconds[again].task.effect_uncertain is True
            for one in seconds.values():
                await worker.start(one.attempt)
                await worker.finish(report(one.attempt, result="2"))
        assert "effect_uncertain" not in await until(api, again, "SUCCEEDED")
        await until(api, waiting, "SUCCEEDED")

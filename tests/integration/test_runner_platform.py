"""A runner on a real platform: MySQL, HTTP, WebSocket."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from orbit.protocol.http_v1 import Task, TaskState
from orbit.protocol.limits import Limits
from orbit.protocol.values import Secret, new_id
from orbit.sdk import Credentials, OrbitClient, TaskContext
from tests.support.clients import task
from tests.support.platform import fresh_credentials, running_node
from tests.support.runners import counted, quick, running

if TYPE_CHECKING:
    from orbit.mysql.dsn import DSN

# A lease of one second on both sides.
SHORT = Limits(task_lease_s=1.0)
WAIT_S = 30.0


@asynccontextmanager
async def platform(dsn: DSN, limits: Limits | None = None) -> AsyncIterator[OrbitClient]:
    """A node of this test's own, and a client of a queue of its own."""
    async with running_node(dsn, limits=limits) as node:
        content = await fresh_credentials(dsn)
        credentials = Credentials(queue_id=content["queue_id"], token=Secret(content["token"]))
        async with OrbitClient(node.base_url, credentials, limits=limits) as client:
            yield client


async def submit(client: OrbitClient, payload: bytes = b"{}", **given: Any) -> str:
    return (await client.submit_task(new_id(), task(client, payload=Raw(payload), **given))).task.task_id


async def state(client: OrbitClient, task_id: str, *wanted: TaskState) -> Task:
    """Wait until the task is in one of these states."""
    async with asyncio.timeout(WAIT_S):
        while (found := await client.get_task(task_id)).state not in wanted:
            await asyncio.sleep(0.02)
    return found


async def test_a_sync_handler_that_sleeps_for_three_leases_keeps_its_lease(platform_dsn: DSN) -> None:
    runner = quick()

    @runner.handler("text.normalize", version="v1", payload_version="v1")
    def handler(payload: Any) -> str:
        time.sleep(3 * SHORT.task_lease_s)
        return "slept"

    async with platform(platform_dsn, SHORT) as client, running(runner, client):
        task_id = await submit(client)
        found = await state(client, task_id, TaskState.SUCCEEDED, TaskState.NEEDS_REVIEW)
        assert (found.state, found.attempt_count) == (TaskState.SUCCEEDED, 1)
    assert runner.counts.evidence_only == 0


async def test_sixty_tasks_at_once_are_taken_without_a_lost_connection(platform_dsn: DSN) -> None:
    runner = quick(concurrency=60)
    calls: Counter[str] = Counter()

    @runner.handler("text.normalize", version="v1", payload_version="v1")
    async def handler(payload: Any, context: TaskContext) -> None:
        calls[context.attempt_id] += 1

    async with platform(platform_dsn) as client:
        for _ in range(60):
            await submit(client)
        async with running(runner, client):
            await counted(runner, lambda counts: counts.confirmed == 60)
        assert set(calls.values()) == {1}
        assert runner.counts.reconnects == 0

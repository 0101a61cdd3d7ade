"""A person's operations whose COMMIT is not confirmed: asked for again they were done once, whichever way it went."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from orbit.mysql.times import LaneTimes
from orbit.protocol.limits import Limits
from orbit.server.web.errors import UNKNOWN_OUTCOME
from tests.support.platform import Api, running_node
from tests.support.reviews import Floor, resolve, retry
from tests.support.rows import rows
from toxiproxy import CutBeforeCommit, DropCommitOk, End, MySQLProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    import httpx

    from orbit.mysql.dsn import DSN
    from tests.support.platform import Node

WAIT_S = 10.0
IMPATIENT = LaneTimes(statement_s=1.5, commit_s=0.5, row_lock_s=1)
FAULTS = [DropCommitOk(End.FIN), DropCommitOk(End.SILENCE), CutBeforeCommit(End.RST)]


@asynccontextmanager
async def scene(dsn: DSN, node: Node, credentials: dict[str, Any]) -> AsyncIterator[tuple[MySQLProxy, Api, Floor]]:
    """The proxy before one node's database, a person at that node, and a worker at another one.

    The node's sweeper is stopped, so that the next COMMIT is that of the person's request.
    """
    async with (
        MySQLProxy(*dsn.hosts[0]) as proxy,
        running_node(dsn.with_host("127.0.0.1", proxy.port), limits=Limits(transaction_s=2.5), times=IMPATIENT) as weak,
        Api(weak.base_url, credentials) as person,
        Api(node.base_url, credentials) as api,
        Floor.open(node.base_url, api) as floor,
    ):
        weak.app.state.sweeping.cancel()
        await asyncio.wait({weak.app.state.sweeping}, timeout=WAIT_S)
        yield proxy, person, floor


async def twice(
    proxy: MySQLProxy, fault: DropCommitOk | CutBeforeCommit, ask: Callable[[], Coroutine[Any, Any, httpx.Response]]
) -> httpx.Response:
    """Ask under the fault, which fires, and again; the second answer."""
    armed = proxy.arm(fault)
    lost = await ask()
    assert armed.fired
    assert (lost.status_code, lost.json()["code"], lost.json()["message"]) == (503, "UNAVAILABLE", UNKNOWN_OUTCOME)
    return await ask()


@pytest.mark.parametrize("fault", FAULTS, ids=str)
async def test_a_resolution(
    platform_dsn: DSN, node: Node, credentials: dict[str, Any], fault: DropCommitOk | CutBeforeCommit
) -> None:
    async with scene(platform_dsn, node, credentials) as (proxy, person, floor):
        task_id = (await floor.under_review()).task.task_id

        settled = await twice(proxy, fault, lambda: resolve(person, task_id, "SUCCEEDED", "my-key", result=1))

        assert (settled.status_code, settled.json()["version"]) == (200, "5")
        assert len(await floor.events(task_id)) == 5
        assert len(await floor.audit(task_id)) == 1


@pytest.mark.parametrize("fault", FAULTS, ids=str)
async def test_a_retry(
    platform_dsn: DSN, node: Node, credentials: dict[str, Any], fault: DropCommitOk | CutBeforeCommit
) -> None:
    async with scene(platform_dsn, node, credentials) as (proxy, person, floor):
        task_id = (await floor.under_review()).task.task_id

        settled = await twice(proxy, fault, lambda: retry(person, task_id, "my-key"))

        # Done the first time, or now.
        assert settled.status_code == (200 if isinstance(fault, DropCommitOk) else 201)
        assert await rows(node, "SELECT task_id FROM tasks WHERE retry_of = :id", id=task_id) == [
            (settled.json()["task"]["task_id"],)
        ]
        assert len(await floor.audit(task_id)) == 1


@pytest.mark.parametrize("fault", FAULTS, ids=str)
@pytest.mark.parametrize(("stage", "state", "version"), [("leased", "CANCELLED", "3"), ("running", "RUNNING", "3")])
async def test_a_cancellation(
    platform_dsn: DSN,
    node: Node,
    credentials: dict[str, Any],
    fault: DropCommitOk | CutBeforeCommit,
    stage: str,
    state: str,
    version: str,
) -> None:
    async with scene(platform_dsn, node, credentials) as (proxy, person, floor):
        one = await getattr(floor, stage)()

        settled = await twice(proxy, fault, lambda: person.cancel(one.task.task_id))

        task = settled.json()
        assert (settled.status_code, task["state"], task["version"]) == (200, state, version)
        assert "cancel_requested_at" in task
        assert len(await floor.audit(one.task.task_id)) == 1
        # However the first request ended, the worker is told.
        assert (await floor.worker.cancellation()).identity == one.attempt.identity

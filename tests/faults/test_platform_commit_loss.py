"""The platform's own COMMITs: answers that are lost, connections that break, a link that goes dark."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from orbit.mysql.times import LaneTimes
from orbit.protocol.limits import Limits
from orbit.sandbox.server import admin_cursor
from orbit.server.web.errors import NOTHING_CHANGED, UNKNOWN_OUTCOME
from tests.support.platform import Api, fresh_credentials, running_node
from tests.support.rows import rows
from toxiproxy import CutAfterStatement, CutBeforeCommit, DarkLink, DropCommitOk, End, MySQLProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

    from orbit.mysql.dsn import DSN
    from orbit.sandbox import MySQLServer
    from tests.support.platform import Node

WAIT_S = 10.0
IMPATIENT = LaneTimes(statement_s=1.5, commit_s=0.5, row_lock_s=1)


@asynccontextmanager
async def proxied(dsn: DSN) -> AsyncIterator[tuple[MySQLProxy, Node, Api]]:
    """A node whose every connection to MySQL goes through a proxy, and a credential on it.

    Its sweeper is stopped, so that the next COMMIT is that of the next request.
    """
    credentials = await fresh_credentials(dsn)
    async with (
        MySQLProxy(*dsn.hosts[0]) as proxy,
        running_node(dsn.with_host("127.0.0.1", proxy.port), limits=Limits(transaction_s=2.5), times=IMPATIENT) as node,
        Api(node.base_url, credentials) as api,
    ):
        node.app.state.sweeping.cancel()
        await asyncio.wait({node.app.state.sweeping}, timeout=WAIT_S)
        yield proxy, node, api


def unavailable(answer: httpx.Response, message: str) -> None:
    """Assert the one answer for a database that did not do its part."""
    assert (answer.status_code, answer.json()["code"], answer.json()["message"]) == (503, "UNAVAILABLE", message)


async def written(node: Node, api: Api) -> tuple[Any, ...]:
    """How many tasks, events, receipts of submits and deliveries the credential's queue has."""
    [counts] = await rows(
        node,
        "SELECT (SELECT COUNT(*) FROM tasks WHERE queue_id = :id), (SELECT COUNT(*) FROM events WHERE queue_id = :id),"
        " (SELECT COUNT(*) FROM operations o JOIN queues q USING (namespace_id)"
        "  WHERE q.queue_id = :id AND o.kind = 'tasks.submit'),"
        " (SELECT COUNT(*) FROM deliveries d JOIN subscriptions s USING (subscription_id) WHERE s.queue_id = :id)",
        id=api.queue_id,
    )
    return counts


@pytest.mark.parametrize("end", [End.FIN, End.RST, End.SILENCE])
async def test_a_submit_whose_commit_was_not_confirmed_is_settled_by_its_key(platform_dsn: DSN, end: End) -> None:
    async with proxied(platform_dsn) as (proxy, node, api):
        await api.subscribe(event_types=["task.submitted"])
        armed = proxy.arm(DropCommitOk(end))

        lost = await api.submit("order-1")
        assert armed.fired
        settled = await api.submit("order-1")

        unavailable(lost, UNKNOWN_OUTCOME)
        assert (settled.status_code, settled.json()["created"]) == (200, False)
        assert await written(node, api) == (1, 1, 1, 1)


@pytest.mark.parametrize("end", [End.FIN, End.RST])
async def test_a_submit_whose_commit_never_arrived_is_settled_by_its_key(platform_dsn: DSN, end: End) -> None:
    async with proxied(platform_dsn) as (proxy, node, api):
        await api.subscribe(event_types=["task.submitted"])
        armed = proxy.arm(CutBeforeCommit(end))

        lost = await api.submit("order-1")
        assert armed.fired
        settled = await api.submit("order-1")

        unavailable(lost, UNKNOWN_OUTCOME)
        assert (settled.status_code, settled.json()["created"]) == (201, True)
        assert await written(node, api) == (1, 1, 1, 1)


async def test_a_submit_stays_in_doubt_for_as_long_as_the_old_session_may_commit(
    mysql: MySQLServer, platform_dsn: DSN
) -> None:
    async with proxied(platform_dsn) as (proxy, node, api):
        armed = proxy.arm(CutBeforeCommit(End.SILENCE))

        lost = await api.submit("order-1")
        cut = await armed.wait(WAIT_S)
        in_doubt = await api.submit("order-1")
        with admin_cursor(mysql.admin) as cursor:
            cursor.execute("KILL %s", (cut.thread_id,))
        settled = await api.submit("order-1")

        unavailable(lost, UNKNOWN_OUTCOME)
        unavailable(in_doubt, NOTHING_CHANGED)
        assert (settled.status_code, settled.json()["created"]) == (201, True)
        assert (await written(node, api))[:3] == (1, 1, 1)


async def test_a_subscription_whose_commit_was_not_confirmed_is_settled_by_its_key(platform_dsn: DSN) -> None:
    async with proxied(platform_dsn) as (proxy, _, api):
        armed = proxy.arm(DropCommitOk(End.RST))

        lost = await api.subscribe("mine")
        assert armed.fired
        settled = await api.subscribe("mine")

        unavailable(lost, UNKNOWN_OUTCOME)
        assert settled.status_code == 200
        assert (await api.http.get("/v1/subscriptions")).json() == {"subscriptions": [settled.json()]}


@pytest.mark.parametrize("fault", [DropCommitOk, CutBeforeCommit])
async def test_a_cancellation_whose_commit_was_not_confirmed_is_settled_by_asking_again(
    platform_dsn: DSN, fault: type[DropCommitOk | CutBeforeCommit]
) -> None:
    async with proxied(platform_dsn) as (proxy, node, api):
        task_id = (await api.submit()).json()["task"]["task_id"]
        armed = proxy.arm(fault(End.FIN))

        lost = await api.cancel(task_id)
        assert armed.fired
        settled = await api.cancel(task_id)

        unavailable(lost, UNKNOWN_OUTCOME)
        assert (settled.json()["state"], settled.json()["version"]) == ("CANCELLED", "2")
        assert (await written(node, api))[:2] == (1, 2)


# A submit has six statements; behind the answer to the last one COMMIT follows, whose fate is unknown.
@pytest.mark.parametrize("statement", range(1, 6))
async def test_a_connection_that_breaks_before_commit_is_nobodys_concern(platform_dsn: DSN, statement: int) -> None:
    async with proxied(platform_dsn) as (proxy, node, api):
        await api.subscribe(event_types=["task.submitted"])
        armed = proxy.arm(CutAfterStatement(statement, End.RST))

        answer = await api.submit("order-1")

        assert armed.fired
        assert answer.status_code == 201
        assert await written(node, api) == (1, 1, 1, 1)


async def test_a_connection_that_breaks_under_a_cancellation_or_a_pause_is_nobodys_concern(platform_dsn: DSN) -> None:
    async with proxied(platform_dsn) as (proxy, node, api):
        subscription = (await api.subscribe()).json()
        task_id = (await api.submit()).json()["task"]["task_id"]
        for statement, path in (
            (4, f"/v1/tasks/{task_id}/cancel"),
            (1, f"/v1/subscriptions/{subscription['subscription_id']}/pause"),
        ):
            armed = proxy.arm(CutAfterStatement(statement, End.RST))
            answer = await api.http.post(path)
            assert armed.fired
            assert answer.status_code == 200
        assert await written(node, api) == (1, 2, 1, 1)


async def test_a_dark_link_is_answered_in_time_and_nothing_stays(platform_dsn: DSN) -> None:
    async with proxied(platform_dsn) as (proxy, node, api):
        armed = proxy.arm(DarkLink(after_statement=3))

        async with asyncio.timeout(WAIT_S):
            refused = await api.submit("order-1")
        assert armed.fired
        not_ready = await api.http.get("/readyz")
        proxy.heal()
        # The first key stays locked until MySQL ends the session that it cannot reach; others are not held up.
        other = await api.submit("order-2")

        unavailable(refused, NOTHING_CHANGED)
        assert not_ready.status_code == 503
        assert other.status_code == 201
        assert (await written(node, api))[:3] == (1, 1, 1)

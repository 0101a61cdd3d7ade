"""A platform node dies without a word; another node over the same database goes on. Real processes, SIGKILL."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tests.support.deliveries import end_leases
from tests.support.events_client import DEADLINE_S, Closed, EventsClient, event_of
from tests.support.platform import Api, NodeProcess

if TYPE_CHECKING:
    from orbit.mysql.dsn import DSN
    from orbit.protocol.events_v1 import Delivery

TASKS = 60
CAPACITY = 8


async def listed(api: Api, subscription_id: str) -> list[dict[str, Any]]:
    """All deliveries of the subscription, page by page."""
    found: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        query = {"limit": "25"} | ({"after": after} if after else {})
        page = (await api.http.get(f"/v1/subscriptions/{subscription_id}/deliveries", params=query)).json()
        found += page["deliveries"]
        after = page.get("next")
        if after is None:
            return found


async def test_a_node_killed_mid_stream_loses_nothing(platform_dsn: DSN, credentials: dict[str, Any]) -> None:
    async with (
        NodeProcess(platform_dsn) as dying,
        NodeProcess(platform_dsn) as surviving,
        Api(surviving.base_url, credentials) as api,
    ):
        subscription = (await api.subscribe(event_types=["task.submitted"])).json()["subscription_id"]
        token: str = credentials["token"]
        tasks: list[str] = []
        received: Counter[str] = Counter()
        unreported: list[Delivery] = []

        async def produce() -> None:
            while len(tasks) < TASKS:
                tasks.append((await api.submit()).json()["task"]["task_id"])

        async def consume_until_killed(client: EventsClient) -> None:
            """Acknowledge every other one at once; kill the node while the others are unreported."""
            while True:
                one = await client.delivery()
                received[event_of(one)["task_id"]] += 1
                unreported.append(one)
                if len(received) == TASKS // 2:
                    await dying.kill()
                if len(unreported) == CAPACITY:
                    await client.ack(*(held.proof for held in unreported[::2]))
                    del unreported[::2]

        producing = asyncio.create_task(produce())
        async with EventsClient.open(dying.base_url, token, subscription) as client:
            await client.capacity(CAPACITY)
            with suppress(Closed):
                await consume_until_killed(client)
        await producing
        assert len(received) >= TASKS // 2
        assert unreported, "the node was to die while work was unreported"

        async with EventsClient.open(surviving.base_url, token, subscription) as client:
            # The leases outlive the node that gave them.
            verdicts = await client.ack(*(one.proof for one in unreported))
            assert [str(one.disposition) for one in verdicts] == ["ACKED"] * len(unreported)
            # What the dead node had leased and not delivered comes back when its lease is over.
            await end_leases(platform_dsn, subscription)
            await client.capacity(CAPACITY)
            async with asyncio.timeout(DEADLINE_S):
                while len(received) < TASKS:
                    one = await client.delivery()
                    received[event_of(one)["task_id"]] += 1
                    assert [str(verdict.disposition) for verdict in await client.ack(one.proof)] == ["ACKED"]

        assert set(received) == set(tasks)
        shown = await listed(api, subscription)
        assert [one["state"] for one in shown] == ["ACKED"] * TASKS
        assert max(received.values()) == 1, "an acknowledged or reported delivery came again"
        assert max(one["attempts"] for one in shown) <= 2


async def test_a_node_started_again_serves_what_it_left_behind(platform_dsn: DSN, credentials: dict[str, Any]) -> None:
    async with NodeProcess(platform_dsn) as node:
        async with Api(node.base_url, credentials) as api:
            subscription = (await api.subscribe(event_types=["task.submitted"])).json()["subscription_id"]
            await api.submit()
            async with EventsClient.open(node.base_url, credentials["token"], subscription) as client:
                await client.capacity(1)
                held = await client.delivery()
                await node.kill()
                await client.closed()
        await node.start()

        async with (
            Api(node.base_url, credentials) as api,
            EventsClient.open(node.base_url, credentials["token"], subscription) as client,
        ):
            (receipt,) = await client.ack(held.proof)
            assert str(receipt.disposition) == "ACKED"
            assert [(one["state"], one["attempts"]) for one in await listed(api, subscription)] == [("ACKED", 1)]


async def test_a_node_told_to_stop_closes_its_sockets_with_1012_and_exits_with_0(
    platform_dsn: DSN, credentials: dict[str, Any]
) -> None:
    async with NodeProcess(platform_dsn) as node, Api(node.base_url, credentials) as api:
        subscription = (await api.subscribe(event_types=["task.submitted"])).json()["subscription_id"]
        async with EventsClient.open(node.base_url, credentials["token"], subscription) as client:
            await client.capacity(1)

            assert await node.stop() == 0
            assert await client.closed() == 1012

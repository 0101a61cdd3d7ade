"""Client and consumer against a real platform over real MySQL."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orbit.protocol.http_v1 import DeliveryState, RetryPolicy, TaskState
from orbit.protocol.limits import Limits
from orbit.protocol.values import new_id
from orbit.sdk import Delivery, EventConsumer, HTTPError, InvalidRequest, OrbitClient
from tests.support.clients import cancelled, saved, states, subscribe, task
from tests.support.consuming import Script, consuming, counted
from tests.support.platform import Node, NodeProcess, fresh_credentials, running_node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orbit.mysql.dsn import DSN


@pytest.fixture
async def client(node: Node, credentials: dict[str, Any], tmp_path: Path) -> AsyncIterator[OrbitClient]:
    async with OrbitClient(node.base_url, saved(tmp_path / "credentials.json", credentials)) as opened:
        yield opened


async def test_a_task_is_submitted_once_for_its_key(client: OrbitClient) -> None:
    key = new_id()
    wanted = task(client, priority=3, retry=RetryPolicy(max_attempts=2))
    first = await client.submit_task(key, wanted)
    again = await client.submit_task(key, wanted)
    assert (first.created, again.created) == (True, False)
    assert first.task == again.task
    assert bytes(first.task.payload) == b'{"n":18446744073709551617.10}'
    assert (first.task.state, first.task.priority, first.task.retry.max_attempts) == (TaskState.WAITING, 3, 2)
    with pytest.raises(HTTPError) as caught:
        await client.submit_task(key, task(client, priority=4))
    assert (caught.value.status, caught.value.code) == (409, "IDEMPOTENCY_CONFLICT")
    assert caught.value.request_id is not None
    assert not caught.value.outcome_unknown


async def test_a_task_is_read_and_cancelled_again_and_again(client: OrbitClient) -> None:
    task_id = await cancelled(client)
    again = await client.cancel_task(task_id)
    assert again == await client.get_task(task_id)
    assert again.state is TaskState.CANCELLED
    with pytest.raises(HTTPError) as caught:
        await client.get_task("f" * 32)
    assert (caught.value.status, caught.value.code) == (404, "NOT_FOUND")
    with pytest.raises(InvalidRequest):
        await client.get_task("../subscriptions")


async def test_subscriptions_and_queues_are_listed_paused_and_resumed(client: OrbitClient) -> None:
    made = [await subscribe(client) for _ in range(3)]
    assert [one.subscription_id for one in (await client.list_subscriptions()).subscriptions] == made
    [queue] = (await client.list_queues()).queues
    assert (queue.queue_id, queue.name) == (client.credentials.queue_id, client.credentials.queue)
    paused = await client.pause_subscription(made[0])
    assert not paused.enabled
    assert not (await client.pause_subscription(made[0])).enabled
    assert (await client.resume_subscription(made[0])).enabled
    assert (await client.get_subscription(made[0])).enabled


async def test_deliveries_are_listed_page_by_page(client: OrbitClient) -> None:
    subscription_id = await subscribe(client)
    for _ in range(3):
        await cancelled(client)
    first = await client.list_deliveries(subscription_id, limit=2)
    assert isinstance(first.next, str)
    second = await client.list_deliveries(subscription_id, after=first.next, limit=2)
    assert not isinstance(second.next, str)
    assert (len(first.deliveries), len(second.deliveries)) == (2, 1)
    assert len({one.delivery_id for one in (*first.deliveries, *second.deliveries)}) == 3


async def test_an_event_comes_from_a_cancelled_task_to_the_handler_and_is_acknowledged(client: OrbitClient) -> None:
    subscription_id = await subscribe(client)
    script = Script()
    async with consuming(client, subscription_id, script) as consumer:
        task_id = await cancelled(client)
        await counted(consumer, lambda counts: counts.acknowledged == 1)
        assert await states(client, subscription_id) == [("ACKED", 1)]
    [call] = script.calls
    assert (call.event.task_id, call.event.state, call.event.event_type) == (task_id, "CANCELLED", "task.cancelled")
    assert (call.attempt, call.attempt_budget) == (1, 10)


async def test_many_events_are_each_handled_and_acknowledged_once(client: OrbitClient) -> None:
    subscription_id = await subscribe(client)
    script = Script()
    async with consuming(client, subscription_id, script) as consumer:
        tasks = {await cancelled(client) for _ in range(60)}
        await counted(consumer, lambda counts: counts.acknowledged == 60)
        assert await states(client, subscription_id) == [("ACKED", 1)] * 60
    assert len(script.calls) == 60
    assert {call.event.task_id for call in script.calls} == tasks


async def test_a_failing_handler_uses_up_the_budget_and_a_grant_brings_the_delivery_back(
    platform_dsn: DSN, tmp_path: Path
) -> None:
    working = False

    async def act(_: Delivery) -> None:
        if not working:
            raise ValueError

    async with running_node(platform_dsn, limits=Limits(delivery_lease_s=1.0)) as node:
        credentials = saved(tmp_path / "credentials.json", await fresh_credentials(platform_dsn))
        client = OrbitClient(node.base_url, credentials)
        subscription_id = await subscribe(client, window=1, attempt_budget=2)
        script = Script(act)
        async with consuming(client, subscription_id, script) as consumer:
            first, second = await cancelled(client), await cancelled(client)
            await counted(consumer, lambda counts: counts.failed == 2)
            await _until_state(client, subscription_id, DeliveryState.EXPIRED)
            assert {call.event.task_id for call in script.calls} == {first}
            working = True
            expired = (await client.list_deliveries(subscription_id)).deliveries[0]
            key = new_id()
            granted = await client.grant(key, expired.delivery_id, 1)
            assert (granted.state, granted.attempt_budget) == (DeliveryState.PENDING, 3)
            assert (await client.grant(key, expired.delivery_id, 1)).attempt_budget == 3
            await counted(consumer, lambda counts: counts.acknowledged == 2)
        assert [(call.event.task_id, call.attempt) for call in script.calls] == [
            (first, 1),
            (first, 2),
            (first, 3),
            (second, 1),
        ]


async def test_a_consumer_with_another_queues_credentials_takes_nothing(
    node: Node, client: OrbitClient, platform_dsn: DSN, credentials: dict[str, Any], tmp_path: Path
) -> None:
    subscription_id = await subscribe(client)
    await cancelled(client)
    names = {name: credentials[name] for name in ("application", "namespace", "environment")}
    other = await fresh_credentials(platform_dsn, **names, queue="other")
    async with OrbitClient(node.base_url, saved(tmp_path / "other.json", other)) as stranger:
        consumer = EventConsumer(stranger, subscription_id, Script())
        with pytest.raises(HTTPError) as caught:
            await asyncio.wait_for(consumer.run(), 20)
    assert (caught.value.status, caught.value.code) == (403, "PERMISSION_DENIED")
    assert await states(client, subscription_id) == [("PENDING", 0)]


async def test_two_consumers_share_a_subscription(client: OrbitClient, node: Node) -> None:
    subscription_id = await subscribe(client)
    scripts = Script(), Script()
    clients = [OrbitClient(node.base_url, client.credentials) for _ in scripts]
    async with (
        consuming(clients[0], subscription_id, scripts[0]) as one,
        consuming(clients[1], subscription_id, scripts[1], alone=False) as two,
    ):
        tasks = [await cancelled(client) for _ in range(40)]
        async with asyncio.timeout(20):
            while one.counts.acknowledged + two.counts.acknowledged < 40:
                done = [asyncio.create_task(each.until(_more_than(each.counts.acknowledged))) for each in (one, two)]
                await asyncio.wait(done, return_when=asyncio.FIRST_COMPLETED)
                for waiting in done:
                    waiting.cancel()
    handled = [call.event.task_id for script in scripts for call in script.calls]
    assert sorted(handled) == sorted(tasks)
    assert one.counts.received + two.counts.received == 40


async def _until_state(client: OrbitClient, subscription_id: str, state: DeliveryState) -> None:
    async with asyncio.timeout(20):
        while all(one.state is not state for one in (await client.list_deliveries(subscription_id)).deliveries):
            await asyncio.sleep(0.05)


def _more_than(number: int) -> Any:
    return lambda counts: counts.acknowledged > number


async def test_a_node_that_is_killed_loses_nothing_that_was_delivered(platform_dsn: DSN, tmp_path: Path) -> None:
    credentials = saved(tmp_path / "credentials.json", await fresh_credentials(platform_dsn))
    gate = asyncio.Event()

    async def act(_: Delivery) -> None:
        await gate.wait()

    async with NodeProcess(platform_dsn) as process:
        script = Script(act)
        async with OrbitClient(process.base_url, credentials) as direct:
            subscription_id = await subscribe(direct)
            async with consuming(OrbitClient(process.base_url, credentials), subscription_id, script) as consumer:
                for _ in range(20):
                    await cancelled(direct)
                await counted(consumer, lambda counts: counts.received == 20)
                await process.kill()
                gate.set()
                # Sixteen wait under leases that still run: they are handled while nobody is there to acknowledge to.
                await counted(consumer, lambda counts: counts.pending == 20 and not consumer.connected)
                await process.start()
                await counted(consumer, lambda counts: counts.acknowledged == 20)
                assert await states(direct, subscription_id) == [("ACKED", 1)] * 20
        assert len(script.calls) == 20

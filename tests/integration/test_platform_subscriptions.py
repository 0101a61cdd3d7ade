"""Subscriptions: created once, counted, paused, and given every event that commits after them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from orbit.mysql.pool import LanePool
from orbit.protocol.http_v1 import EventType
from orbit.protocol.values import new_id
from orbit.server.ledger import Ledger
from orbit.server.wake import subscription_key
from tests.support.lanes import closing
from tests.support.platform import Api, fresh_credentials
from tests.support.rows import rows, sql, waiting_for_lock

if TYPE_CHECKING:
    from collections.abc import Awaitable

    import httpx

    from orbit.mysql.dsn import DSN
    from orbit.mysql.transaction import Transaction
    from orbit.sandbox import MySQLServer
    from tests.support.platform import Node

ALL_TYPES = [one.value for one in EventType]
BUDGET_S = 10.0


async def deliveries(node: Node, subscription_id: str) -> list[tuple[Any, ...]]:
    """Type, task and state of a subscription's deliveries in their order."""
    return await rows(
        node,
        "SELECT e.event_type, e.task_id, d.state, d.attempts, d.attempt_budget, d.epoch FROM deliveries d"
        " JOIN events e USING (event_id) WHERE d.subscription_id = :id ORDER BY d.delivery_no",
        id=subscription_id,
    )


async def test_a_subscription_has_the_defaults_and_comes_back(api: Api) -> None:
    created = await api.subscribe()

    assert created.status_code == 201
    subscription = created.json()
    assert subscription == {
        "subscription_id": subscription["subscription_id"],
        "queue_id": api.queue_id,
        "event_types": ["task.cancelled"],
        "enabled": True,
        "window": 64,
        "attempt_budget": 10,
        "created_at": subscription["created_at"],
        "updated_at": subscription["created_at"],
    }
    assert (await api.http.get(f"/v1/subscriptions/{subscription['subscription_id']}")).json() == subscription
    assert (await api.http.get("/v1/subscriptions")).json() == {"subscriptions": [subscription]}


async def test_creating_again_with_the_same_key_gives_the_same_one(api: Api) -> None:
    types = ["task.failed", "task.cancelled"]
    first = await api.subscribe("a", event_types=types)

    again = await api.subscribe("a", event_types=types[::-1], window=64, attempt_budget=10)
    other = await api.subscribe("a", event_types=types, window=63)

    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 409)
    assert again.json() == first.json()
    assert other.json()["code"] == "IDEMPOTENCY_CONFLICT"
    assert len((await api.http.get("/v1/subscriptions")).json()["subscriptions"]) == 1


async def test_one_key_serves_a_submit_and_a_subscription(api: Api) -> None:
    assert (await api.submit("a")).status_code == 201
    assert (await api.subscribe("a")).status_code == 201


@pytest.mark.parametrize(
    "wrong",
    [
        {"event_types": []},
        {"event_types": ["task.cancelled", "task.cancelled"]},
        {"event_types": ["task.done"]},
        {"event_types": "task.cancelled"},
        {"window": 0},
        {"window": 1001},
        {"attempt_budget": 0},
        {"attempt_budget": 101},
        {"enabled": False},
    ],
    ids=str,
)
async def test_a_wrong_subscription_is_refused(api: Api, wrong: dict[str, Any]) -> None:
    answer = await api.subscribe(**wrong)

    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_ARGUMENT")


async def test_events_reach_the_subscriptions_that_want_them_and_came_before_them(api: Api, node: Node) -> None:
    before = (await api.submit()).json()["task"]["task_id"]
    every = (await api.subscribe(event_types=ALL_TYPES, attempt_budget=3)).json()["subscription_id"]
    cancelled = (await api.subscribe(event_types=["task.cancelled"])).json()["subscription_id"]
    failed = (await api.subscribe(event_types=["task.failed"])).json()["subscription_id"]
    after = (await api.submit()).json()["task"]["task_id"]
    for task_id in (after, before):
        await api.cancel(task_id)

    assert await deliveries(node, every) == [
        ("task.submitted", after, "PENDING", 0, 3, 0),
        ("task.cancelled", after, "PENDING", 0, 3, 0),
        ("task.cancelled", before, "PENDING", 0, 3, 0),
    ]
    assert await deliveries(node, cancelled) == [
        ("task.cancelled", after, "PENDING", 0, 10, 0),
        ("task.cancelled", before, "PENDING", 0, 10, 0),
    ]
    assert await deliveries(node, failed) == []


async def test_a_paused_subscription_collects_and_both_ways_may_be_repeated(api: Api, node: Node) -> None:
    subscription = (await api.subscribe(event_types=["task.submitted"])).json()
    path = f"/v1/subscriptions/{subscription['subscription_id']}"

    paused = [(await api.http.post(f"{path}/pause", json={})).json() for _ in range(2)]
    await api.submit()
    resumed = [(await api.http.post(f"{path}/resume")).json() for _ in range(2)]

    assert paused[0] == paused[1] == subscription | {"enabled": False, "updated_at": paused[0]["updated_at"]}
    assert resumed[0] == resumed[1] == subscription | {"enabled": True, "updated_at": resumed[0]["updated_at"]}
    assert subscription["updated_at"] < paused[0]["updated_at"] < resumed[0]["updated_at"]
    assert len(await deliveries(node, subscription["subscription_id"])) == 1


async def test_an_event_goes_to_as_many_subscriptions_as_there_may_be(api: Api, node: Node) -> None:
    made = [(await api.subscribe(event_types=["task.submitted"])).json() for _ in range(64)]

    await api.submit()

    for subscription in made:
        assert len(await deliveries(node, subscription["subscription_id"])) == 1


async def test_the_65th_subscription_of_a_namespace_is_refused_whoever_asks(
    api: Api, node: Node, credentials: dict[str, Any], platform_dsn: DSN
) -> None:
    namespace = credentials["namespace"]
    neighbours = [
        await fresh_credentials(platform_dsn, namespace=namespace),
        await fresh_credentials(
            platform_dsn, namespace=namespace, application=credentials["application"], queue="other"
        ),
    ]
    made = [(await api.subscribe(f"key-{number}")).json() for number in range(60)]
    await api.http.post(f"/v1/subscriptions/{made[0]['subscription_id']}/pause")
    async with AsyncExitStack() as stack:
        everybody = [api, *[await stack.enter_async_context(Api(node.base_url, one)) for one in neighbours]]

        answers = await asyncio.gather(*(one.subscribe() for _ in range(7) for one in everybody))

        statuses = sorted(answer.status_code for answer in answers)
        assert statuses == [201] * 4 + [429] * 17
        refused = {answer.json()["code"] for answer in answers if answer.status_code == 429}
        assert refused == {"RESOURCE_EXHAUSTED"}
    # A full namespace still answers for what it has; a refusal keeps no receipt.
    assert (await api.subscribe("key-0")).status_code == 200
    assert await rows(
        node,
        "SELECT COUNT(*), COUNT(DISTINCT o.resource_id) FROM operations o JOIN namespaces n USING (namespace_id)"
        " WHERE n.name = :name AND o.kind = 'subscriptions.create'",
        name=namespace,
    ) == [(64, 64)]


async def test_subscriptions_of_others_do_not_exist_and_those_of_another_queue_are_refused(
    api: Api, node: Node, credentials: dict[str, Any], platform_dsn: DSN
) -> None:
    subscription_id = (await api.subscribe()).json()["subscription_id"]
    same = {"namespace": credentials["namespace"], "application": credentials["application"]}
    cases = [
        ({}, 404),
        ({"namespace": same["namespace"]}, 404),
        ({"application": same["application"]}, 404),
        ({**same, "queue": "other"}, 403),
    ]
    for names, status in cases:
        async with Api(node.base_url, await fresh_credentials(platform_dsn, **names)) as other:
            path = f"/v1/subscriptions/{subscription_id}"
            answers = [
                await other.http.get(path),
                await other.http.post(f"{path}/pause"),
                await other.http.post(f"{path}/resume"),
                await other.http.get(f"{path}/deliveries"),
            ]
            assert [answer.status_code for answer in answers] == [status] * 4, names
            assert (await other.http.get("/v1/subscriptions")).json() == {"subscriptions": []}
    assert (await api.http.get(f"/v1/subscriptions/{subscription_id}")).json()["enabled"] is True


async def test_a_subscription_waits_for_open_ledgers_and_misses_nothing_after_them(
    api: Api, node: Node, mysql: MySQLServer, platform_dsn: DSN
) -> None:
    """An event either sees the subscription or was committed before it existed, in both orders of arrival."""
    async with closing(LanePool(platform_dsn, 1, name="writer")) as writer:
        opened, finish = asyncio.Event(), asyncio.Event()
        task_id = (await api.submit()).json()["task"]["task_id"]

        async def hold_a_ledger(tx: Transaction) -> None:
            await Ledger.open(tx, api.queue_id)
            opened.set()
            await finish.wait()

        holding = asyncio.create_task(writer.run(hold_a_ledger, budget_s=BUDGET_S))
        await asyncio.wait_for(opened.wait(), BUDGET_S)
        subscribing = asyncio.create_task(api.subscribe())
        await waiting_for_lock(mysql, platform_dsn, "queues")

        finish.set()
        await holding
        subscription = (await subscribing).json()
        await api.cancel(task_id)

    assert await deliveries(node, subscription["subscription_id"]) == [("task.cancelled", task_id, "PENDING", 0, 10, 0)]


async def test_a_ledger_waits_for_a_subscription_that_is_being_created(
    api: Api, node: Node, mysql: MySQLServer, platform_dsn: DSN
) -> None:
    async with closing(LanePool(platform_dsn, 1, name="creator")) as creator:
        locked, finish = asyncio.Event(), asyncio.Event()
        subscription_id = new_id()
        task_id = (await api.submit()).json()["task"]["task_id"]

        async def create_slowly(tx: Transaction) -> None:
            await tx.fetch(sql("SELECT 1 FROM queues WHERE queue_id = :id FOR UPDATE"), {"id": api.queue_id})
            locked.set()
            await finish.wait()
            await tx.execute(
                sql(
                    "INSERT INTO subscriptions SELECT :new, q.namespace_id, c.application_id, q.queue_id,"
                    " 'task.cancelled', 1, 64, 10, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6)"
                    " FROM queues q JOIN credentials c USING (queue_id) WHERE q.queue_id = :id"
                ),
                {"new": subscription_id, "id": api.queue_id},
            )

        creating = asyncio.create_task(creator.run(create_slowly, budget_s=BUDGET_S))
        await asyncio.wait_for(locked.wait(), BUDGET_S)
        cancelling = asyncio.create_task(api.cancel(task_id))
        await waiting_for_lock(mysql, platform_dsn, "queues")

        finish.set()
        await creating
        assert (await cancelling).status_code == 200

    assert await deliveries(node, subscription_id) == [("task.cancelled", task_id, "PENDING", 0, 10, 0)]


async def test_whoever_waits_for_a_subscription_is_woken_by_what_concerns_it(api: Api, node: Node) -> None:
    subscription_id = (await api.subscribe(event_types=["task.cancelled"])).json()["subscription_id"]
    path = f"/v1/subscriptions/{subscription_id}"
    with node.platform.wake.watch(subscription_key(subscription_id)) as watch:

        async def wakes(request: Awaitable[httpx.Response]) -> bool:
            watch.arm()
            answer = await request
            assert answer.is_success
            return await watch.wait(0)

        assert not await wakes(api.submit())
        task_id = (await api.submit("a")).json()["task"]["task_id"]
        assert await wakes(api.cancel(task_id))
        assert not await wakes(api.cancel(task_id))
        assert await wakes(api.http.post(f"{path}/pause"))
        assert await wakes(api.http.post(f"{path}/resume"))
    other = (await api.subscribe(event_types=["task.submitted"])).json()["subscription_id"]
    with node.platform.wake.watch(subscription_key(other)) as watch:
        watch.arm()
        await api.submit("b")
        assert await watch.wait(0)
        watch.arm()
        await api.submit("b")
        assert not await watch.wait(0)

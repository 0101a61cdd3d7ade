"""`pulse.events.v1` over a real socket: greeting, capacity, credit, answers, and every way in which it ends."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from orbit.protocol.events_v1 import Ack, Capacity, Hello, Proof
from orbit.protocol.limits import Limits
from orbit.protocol.session import Requested
from orbit.protocol.values import Secret, new_id
from orbit.server.services.access import authenticate
from orbit.server.web.consumer import Consumer
from tests.support.events_client import DEADLINE_S, EventsClient, Refusal, event_of, socket
from tests.support.platform import Api, Node, fresh_credentials, running_node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from websockets.asyncio.client import ClientConnection

    from orbit.mysql.dsn import DSN


class Scene:
    """One credential's subscription to task.submitted on one node."""

    def __init__(self, node: Node, api: Api, credentials: dict[str, Any], subscription_id: str) -> None:
        self.node = node
        self.api = api
        self.token: str = credentials["token"]
        self.subscription_id = subscription_id

    def consumer(self) -> AbstractAsyncContextManager[EventsClient]:
        """A greeted consumer."""
        return EventsClient.open(self.node.base_url, self.token, self.subscription_id)

    async def submit(self, count: int) -> list[str]:
        return [(await self.api.submit()).json()["task"]["task_id"] for _ in range(count)]

    async def look(self, consumer: EventsClient, capacity: int) -> None:
        """Make the node look for deliveries at this capacity: the second answer waits for what the first started."""
        await consumer.capacity(capacity)
        await consumer.capacity(capacity)

    async def deliveries(self) -> list[tuple[str, int]]:
        """State and attempts of each delivery, oldest first."""
        page = (await self.api.http.get(f"/v1/subscriptions/{self.subscription_id}/deliveries")).json()
        return [(one["state"], one["attempts"]) for one in page["deliveries"]]


async def scene_on(node: Node, credentials: dict[str, Any], api: Api, **given: Any) -> Scene:
    made = await api.subscribe(event_types=["task.submitted"], **given)
    return Scene(node, api, credentials, made.json()["subscription_id"])


@pytest.fixture(scope="module")
async def node(platform_dsn: DSN) -> AsyncIterator[Node]:
    """A node that hardly ever looks by itself: what happens in time happens because somebody was woken."""
    async with running_node(platform_dsn, limits=Limits(node_poll_s=60)) as running:
        yield running


@pytest.fixture
async def scene(node: Node, credentials: dict[str, Any], api: Api) -> Scene:
    return await scene_on(node, credentials, api)


async def test_deliveries_come_with_the_frozen_event_and_an_ack_ends_them(scene: Scene) -> None:
    tasks = await scene.submit(2)
    async with scene.consumer() as consumer:
        await consumer.capacity(5)
        first, second = await consumer.delivery(), await consumer.delivery()

        assert [event_of(one)["task_id"] for one in (first, second)] == tasks
        assert event_of(first)["event_type"] == "task.submitted"
        assert (first.attempt, first.attempt_budget, first.proof.epoch) == (1, 10, 1)
        verdicts = await consumer.ack(first.proof, second.proof)

    assert [str(one.disposition) for one in verdicts] == ["ACKED", "ACKED"]
    assert await scene.deliveries() == [("ACKED", 1), ("ACKED", 1)]


async def test_an_event_that_is_committed_while_a_consumer_waits_is_pushed(scene: Scene) -> None:
    async with scene.consumer() as consumer:
        await consumer.capacity(1)
        (task,) = await scene.submit(1)

        assert event_of(await consumer.delivery())["task_id"] == task


async def test_nothing_is_pushed_before_a_capacity_and_never_more_than_it(scene: Scene) -> None:
    await scene.submit(3)
    async with scene.consumer() as consumer:
        # Other requests are answered; the session would raise at a push that comes before the first confirmation.
        assert (await scene.deliveries()) == [("PENDING", 0)] * 3
        await consumer.capacity(2)
        held = [await consumer.delivery(), await consumer.delivery()]

        await scene.look(consumer, 2)
        assert await scene.deliveries() == [("LEASED", 1), ("LEASED", 1), ("PENDING", 0)]
        await consumer.ack(held[0].proof)
        await consumer.delivery()
        assert await scene.deliveries() == [("ACKED", 1), ("LEASED", 1), ("LEASED", 1)]


async def test_capacity_zero_stops_and_a_release_gives_everything_back(scene: Scene) -> None:
    await scene.submit(3)
    async with scene.consumer() as consumer:
        await consumer.capacity(2)
        held = [await consumer.delivery(), await consumer.delivery()]
        await consumer.capacity(0)
        verdicts = await consumer.release(*(one.proof for one in held), started=False)
        await scene.look(consumer, 0)

        assert [str(one.disposition) for one in verdicts] == ["RELEASED", "RELEASED"]
        assert consumer.deliveries.empty()
        assert await scene.deliveries() == [("PENDING", 0)] * 3


async def test_a_release_of_started_work_frees_the_slot_and_not_the_lease(scene: Scene) -> None:
    await scene.submit(2)
    async with scene.consumer() as consumer:
        await consumer.capacity(1)
        failed = await consumer.delivery()
        await consumer.release(failed.proof, started=True)
        following = await consumer.delivery()

        assert following.proof.delivery_id != failed.proof.delivery_id
        assert await scene.deliveries() == [("LEASED", 1), ("LEASED", 1)]


async def test_a_guessed_proof_frees_no_slot(scene: Scene) -> None:
    await scene.submit(2)
    async with scene.consumer() as consumer:
        await consumer.capacity(1)
        held = await consumer.delivery()
        (verdict,) = await consumer.ack(replace(held.proof, lease_secret=Secret.new()))
        await scene.look(consumer, 1)

        assert str(verdict.code) == "INVALID_PROOF"
        assert await scene.deliveries() == [("LEASED", 1), ("PENDING", 0)]


async def test_nothing_that_was_claimed_before_follows_the_confirmation_of_a_smaller_capacity(
    node: Node, credentials: dict[str, Any], scene: Scene
) -> None:
    await scene.submit(1)
    consumer = Consumer(node.platform, await authenticate(node.platform.pool, scene.token, Limits()))
    await consumer.greet(Hello(subscription_id=scene.subscription_id, consumer_id=new_id()))
    said: list[str] = []
    pushing, go_on = asyncio.Event(), asyncio.Event()

    async def push(name: str, body: object) -> None:
        pushing.set()
        await go_on.wait()
        said.append(name)

    async def announce(sequence: int, capacity: int) -> None:
        async def reply(body: object) -> None:
            said.append(f"confirmed {capacity}")

        body = Capacity(sequence=sequence, capacity=capacity)
        await consumer.serve(Requested(new_id(), "consumer.capacity", body), reply)

    async with asyncio.TaskGroup() as group:
        pusher = group.create_task(consumer.push_all(push))
        await announce(1, 1)
        await asyncio.wait_for(pushing.wait(), DEADLINE_S)
        stopping = group.create_task(announce(2, 0))
        await asyncio.wait((stopping,), timeout=0.05)
        go_on.set()
        await stopping
        pusher.cancel()

    assert said == ["confirmed 1", "event.deliver", "confirmed 0"]


async def test_what_one_consumer_releases_another_one_gets(scene: Scene) -> None:
    await scene.submit(1)
    async with scene.consumer() as one, scene.consumer() as other:
        await one.capacity(1)
        held = await one.delivery()
        await other.capacity(1)
        await one.capacity(0)
        await one.release(held.proof, started=False)

        again = await other.delivery()
        assert (again.proof.delivery_id, again.attempt, again.proof.epoch) == (held.proof.delivery_id, 1, 2)


async def test_a_delivery_whose_lease_ran_out_frees_its_slot_and_comes_again(
    platform_dsn: DSN, credentials: dict[str, Any]
) -> None:
    async with (
        running_node(platform_dsn, limits=Limits(delivery_lease_s=1)) as node,
        Api(node.base_url, credentials) as api,
    ):
        scene = await scene_on(node, credentials, api)
        await scene.submit(1)
        async with scene.consumer() as consumer:
            await consumer.capacity(1)
            first = await consumer.delivery()
            second = await consumer.delivery()

            assert second.proof.delivery_id == first.proof.delivery_id
            assert (second.attempt, second.proof.epoch) == (2, 2)
            (stale,) = await consumer.ack(first.proof)
            assert str(stale.code) == "STALE_EPOCH"
            (receipt,) = await consumer.ack(second.proof)
            assert str(receipt.disposition) == "ACKED"


async def test_a_paused_subscription_pushes_nothing_until_it_is_resumed(scene: Scene) -> None:
    url = f"/v1/subscriptions/{scene.subscription_id}"
    async with scene.consumer() as consumer:
        await consumer.capacity(1)
        assert (await scene.api.http.post(f"{url}/pause", json={})).json()["enabled"] is False
        (task,) = await scene.submit(1)
        await scene.look(consumer, 1)
        assert await scene.deliveries() == [("PENDING", 0)]

        assert (await scene.api.http.post(f"{url}/resume", json={})).json()["enabled"] is True
        assert event_of(await consumer.delivery())["task_id"] == task


async def test_requests_in_flight_are_answered_in_their_order(scene: Scene) -> None:
    await scene.submit(8)
    async with scene.consumer() as consumer:
        await consumer.capacity(8)
        held = [await consumer.delivery() for _ in range(8)]
        sent: list[str] = []
        asking = []
        for one in held:
            message_id = new_id()
            sent.append(message_id)
            data = consumer.session.request("event.ack", Ack(deliveries=(one.proof,)), message_id)
            asking.append(asyncio.ensure_future(consumer._ask(message_id, data)))
        await asyncio.gather(*asking)

        assert consumer.answers[-8:] == sent


async def test_an_invalid_body_costs_its_own_request_only(scene: Scene) -> None:
    async with scene.consumer() as consumer:
        await consumer.capacity(1)
        message_id = new_id()
        data = consumer.session.request(
            "event.ack", Ack(deliveries=(Proof(delivery_id=new_id(), epoch=1, lease_secret=Secret.new()),)), message_id
        )
        broken = json.loads(data)
        broken["body"]["deliveries"][0]["epoch"] = 1
        with pytest.raises(Refusal) as refused:
            await consumer._ask(message_id, json.dumps(broken).encode())

        assert refused.value.code == "INVALID_ARGUMENT"
        assert (await consumer.capacity(2)).capacity == 2


async def test_a_capacity_that_goes_back_is_refused(scene: Scene) -> None:
    async with scene.consumer() as consumer:
        await consumer.capacity(1)
        await consumer.capacity(1)
        message_id = new_id()
        data = consumer.session.request("consumer.capacity", Capacity(sequence=3, capacity=1), message_id)
        with pytest.raises(Refusal) as refused:
            await consumer._ask(message_id, data.replace(b'"sequence":"3"', b'"sequence":"1"'))

        assert refused.value.code == "STATE_CONFLICT"


# Before the upgrade.


@pytest.mark.parametrize(
    ("token", "subprotocol", "status", "code"),
    [
        ("none", "pulse.events.v1", 401, "UNAUTHENTICATED"),
        ("A" * 43, "pulse.events.v1", 401, "UNAUTHENTICATED"),
        (None, "pulse.events.v2", 426, "UNSUPPORTED_PROTOCOL"),
    ],
)
async def test_the_upgrade_is_refused_with_json(
    scene: Scene, token: str | None, subprotocol: str, status: int, code: str
) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with socket(scene.node.base_url, token or scene.token, subprotocol):
            pass

    assert refused.value.response.status_code == status
    assert refused.value.response.headers["Content-Type"] == "application/json"
    body = json.loads(refused.value.response.body or b"")
    assert body["code"] == code
    assert len(body["request_id"]) == 32


async def test_the_upgrade_is_refused_without_the_permission_to_consume(node: Node, platform_dsn: DSN) -> None:
    producer = await fresh_credentials(platform_dsn, event_access=False)

    with pytest.raises(InvalidStatus) as refused:
        async with socket(node.base_url, producer["token"]):
            pass

    assert refused.value.response.status_code == 403
    assert json.loads(refused.value.response.body or b"")["code"] == "PERMISSION_DENIED"


# At the hello.


async def refused_hello(node: Node, token: str, subscription_id: str) -> tuple[str, int | None]:
    """Code of the refusal and of the close."""
    async with socket(node.base_url, token) as connection:
        client = EventsClient(connection)
        client._reading = asyncio.create_task(client._read())
        with pytest.raises(Refusal) as refused:
            await client.greet(subscription_id)
        return refused.value.code, await client.closed()


async def test_a_subscription_of_nobody_or_of_another_application_does_not_exist(
    scene: Scene, platform_dsn: DSN
) -> None:
    stranger = await fresh_credentials(platform_dsn)

    assert await refused_hello(scene.node, scene.token, new_id()) == ("NOT_FOUND", 1008)
    assert await refused_hello(scene.node, stranger["token"], scene.subscription_id) == ("NOT_FOUND", 1008)


async def test_a_credential_of_another_queue_is_refused_and_spends_no_attempt(
    scene: Scene, credentials: dict[str, Any], platform_dsn: DSN
) -> None:
    names = {name: credentials[name] for name in ("application", "namespace", "environment")}
    other = await fresh_credentials(platform_dsn, **names, queue="another")
    await scene.submit(1)

    assert await refused_hello(scene.node, other["token"], scene.subscription_id) == ("PERMISSION_DENIED", 1008)
    assert await scene.deliveries() == [("PENDING", 0)]


# How it ends.


async def ending(connection: ClientConnection) -> tuple[list[dict[str, Any]], int | None]:
    """The frames until the server closes, and its close code."""
    frames: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                frames.append(json.loads(await connection.recv()))
    except ConnectionClosed:
        return frames, connection.close_code


ENVELOPE = {"protocol_version": "1", "type": "consumer.hello", "message_id": "a" * 32}
BROKEN = [
    "{",
    "[]",
    '{"protocol_version":"1"}',
    json.dumps(ENVELOPE | {"body": {}, "protocol_version": "2"}),
    json.dumps(ENVELOPE | {"body": {}, "unknown": 1}),
    json.dumps(ENVELOPE | {"body": {}, "type": "event.ack"}),
    json.dumps(ENVELOPE | {"body": {}, "type": "worker.hello"}),
    json.dumps(ENVELOPE)[:-1] + ',"body":{},"body":{}}',
]


@pytest.mark.parametrize("text", BROKEN)
async def test_a_frame_that_breaks_the_rules_is_told_and_ends_it_with_1002(scene: Scene, text: str) -> None:
    async with socket(scene.node.base_url, scene.token) as connection:
        await connection.send(text)
        frames, code = await ending(connection)

    assert [(one["type"], one["error"]["code"]) for one in frames] == [("error", "INVALID_ARGUMENT")]
    assert code == 1002


async def test_a_second_hello_ends_it_with_1002(scene: Scene) -> None:
    async with scene.consumer() as consumer:
        await consumer.connection.send(
            json.dumps(ENVELOPE | {"body": {"subscription_id": "a" * 32, "consumer_id": "a" * 32}})
        )

        assert await consumer.closed() == 1002


async def test_a_hello_with_a_wrong_body_is_refused(scene: Scene) -> None:
    async with socket(scene.node.base_url, scene.token) as connection:
        await connection.send(json.dumps(ENVELOPE | {"body": {"subscription_id": 1, "consumer_id": "a" * 32}}))
        frames, code = await ending(connection)

    assert [(one["error"]["code"], one["reply_to"]) for one in frames] == [("INVALID_ARGUMENT", "a" * 32)]
    assert code == 1008


async def test_a_binary_message_ends_it_with_1003(scene: Scene) -> None:
    async with socket(scene.node.base_url, scene.token) as connection:
        await connection.send(b"{}")

        assert await ending(connection) == ([], 1003)


async def test_a_message_over_512_kib_ends_it_with_1009(scene: Scene) -> None:
    async with socket(scene.node.base_url, scene.token) as connection:
        await connection.send("a" * (512 * 1024 + 1))

        assert await ending(connection) == ([], 1009)


async def test_an_event_committed_at_one_node_reaches_a_consumer_of_another(scene: Scene, platform_dsn: DSN) -> None:
    async with (
        running_node(platform_dsn) as other,
        EventsClient.open(other.base_url, scene.token, scene.subscription_id) as consumer,
    ):
        await consumer.capacity(1)
        (task,) = await scene.submit(1)

        assert event_of(await consumer.delivery())["task_id"] == task


@pytest.fixture
async def hasty(platform_dsn: DSN, credentials: dict[str, Any]) -> AsyncIterator[Scene]:
    """A scene on a node with little patience."""
    limits = Limits(handshake_s=0.2, read_idle_s=0.3, control_s=0.5)
    async with running_node(platform_dsn, limits=limits) as node, Api(node.base_url, credentials) as api:
        yield await scene_on(node, credentials, api)


async def test_a_peer_that_never_says_hello_is_closed_with_1008(hasty: Scene) -> None:
    async with socket(hasty.node.base_url, hasty.token) as connection:
        assert await ending(connection) == ([], 1008)


async def test_a_peer_that_says_nothing_any_more_is_closed_with_1008(hasty: Scene) -> None:
    async with hasty.consumer() as consumer:
        await consumer.capacity(1)

        assert await consumer.closed() == 1008


async def test_a_stopping_node_closes_with_1012_and_leaves_the_deliveries_leased(
    scene: Scene, platform_dsn: DSN
) -> None:
    await scene.submit(1)
    async with AsyncExitStack() as running:
        stopping = await running.enter_async_context(running_node(platform_dsn))
        async with EventsClient.open(stopping.base_url, scene.token, scene.subscription_id) as consumer:
            await consumer.capacity(1)
            held = await consumer.delivery()
            await running.aclose()

            assert await consumer.closed() == 1012
    assert await scene.deliveries() == [("LEASED", 1)]
    async with scene.consumer() as again:
        (receipt,) = await again.ack(held.proof)
        assert str(receipt.disposition) == "ACKED"


async def test_deliveries_of_a_lost_connection_stay_leased_and_their_proof_holds_on_the_next(scene: Scene) -> None:
    await scene.submit(2)
    async with scene.consumer() as consumer:
        await consumer.capacity(2)
        held = [await consumer.delivery(), await consumer.delivery()]
        consumer.connection.transport.abort()
        await consumer.closed()

    async with scene.consumer() as again:
        await again.capacity(2)
        assert await scene.deliveries() == [("LEASED", 1), ("LEASED", 1)]
        verdicts = await again.ack(*(one.proof for one in held))
        assert [str(one.disposition) for one in verdicts] == ["ACKED", "ACKED"]
    assert await scene.deliveries() == [("ACKED", 1), ("ACKED", 1)]

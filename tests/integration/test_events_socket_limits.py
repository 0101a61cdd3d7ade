"""What a connection of `pulse.events.v1` may cost its node: slow readers, frames too large, draining, defects."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from orbit.mysql.statement import Statement
from orbit.protocol.limits import Limits
from orbit.protocol.session import Ended
from orbit.protocol.values import new_id
from tests.support.events_client import DEADLINE_S, Closed, EventsClient, Refusal, event_of, socket
from tests.support.platform import Api, Node, running_node
from tests.support.rows import rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from websockets.asyncio.client import ClientConnection

    from orbit.mysql.dsn import DSN


@asynccontextmanager
async def node_with(dsn: DSN, credentials: dict[str, Any], limits: Limits) -> AsyncIterator[tuple[Node, Api, str]]:
    """A node, an API client of it, and a subscription to task.submitted."""
    async with running_node(dsn, limits=limits) as node, Api(node.base_url, credentials) as api:
        made = await api.subscribe(event_types=["task.submitted"])
        yield node, api, made.json()["subscription_id"]


async def change(node: Node, text: str) -> None:
    await node.platform.pool.run(lambda tx: tx.execute(Statement(text)), budget_s=10)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.01)


async def say(connection: ClientConnection, name: str, body: dict[str, Any], session_id: str | None = None) -> None:
    frame: dict[str, Any] = {"protocol_version": "1", "type": name, "message_id": new_id(), "body": body}
    if session_id is not None:
        frame["session_id"] = session_id
    await connection.send(json.dumps(frame))


async def test_a_consumer_that_does_not_read_is_given_up_and_holds_nothing_of_the_node(
    platform_dsn: DSN, credentials: dict[str, Any]
) -> None:
    async with node_with(platform_dsn, credentials, Limits(control_s=0.5)) as (node, api, subscription):
        for _ in range(64):
            await api.submit()
        large = f"CONCAT('{{\"filler\":\"', REPEAT('a', {480 * 1024}), '\"}}')"
        await change(node, f"UPDATE events SET event = {large} WHERE queue_id = '{credentials['queue_id']}'")
        async with socket(node.base_url, credentials["token"]) as connection:
            await say(connection, "consumer.hello", {"subscription_id": subscription, "consumer_id": new_id()})
            session_id = json.loads(await connection.recv())["session_id"]
            assert list(node.platform.wake._watches) == [f"subscription:{subscription}"]
            await say(connection, "consumer.capacity", {"sequence": "1", "capacity": 64}, session_id)

            # Nobody receives any more: 30 MiB do not fit into all the buffers on the way.
            await until(lambda: not node.platform.wake._watches)
            connection.transport.abort()


async def test_more_deliveries_than_a_batch_come_without_waiting_for_the_next_look(
    platform_dsn: DSN, credentials: dict[str, Any]
) -> None:
    limits = Limits(delivery_batch=2, node_poll_s=60)
    async with node_with(platform_dsn, credentials, limits) as (node, api, subscription):
        tasks = [(await api.submit()).json()["task"]["task_id"] for _ in range(5)]
        async with EventsClient.open(node.base_url, credentials["token"], subscription) as client:
            await client.capacity(8)

            assert [event_of(await client.delivery())["task_id"] for _ in range(5)] == tasks


async def test_a_consumer_with_nothing_to_do_leaves_the_database_alone(
    platform_dsn: DSN, credentials: dict[str, Any]
) -> None:
    async with node_with(platform_dsn, credentials, Limits(node_poll_s=60)) as (node, api, subscription):
        await api.submit()
        async with EventsClient.open(node.base_url, credentials["token"], subscription) as client:
            await client.capacity(8)
            await client.delivery()
            await client.capacity(8)
            before = node.platform.pool.tally.committed
            # Reads commit nothing; a loop that does not rest would claim hundreds of times meanwhile.
            for _ in range(20):
                await api.http.get(f"/v1/subscriptions/{subscription}")

            assert node.platform.pool.tally.committed - before <= 2


async def test_a_consumer_that_has_fallen_silent_is_given_nothing(
    platform_dsn: DSN, credentials: dict[str, Any], node: Node
) -> None:
    """A dead link looks like a silent one. To the first node everybody is silent at once; the second one waits."""
    async with (
        node_with(platform_dsn, credentials, Limits(heartbeat_s=0)) as (deaf, api, subscription),
        EventsClient.open(deaf.base_url, credentials["token"], subscription) as silent,
    ):
        await silent.capacity(8)
        tasks = [(await api.submit()).json()["task"]["task_id"] for _ in range(3)]
        await silent.capacity(8)
        async with EventsClient.open(node.base_url, credentials["token"], subscription) as speaking:
            await speaking.capacity(8)

            assert [event_of(await speaking.delivery())["task_id"] for _ in tasks] == tasks


async def test_a_delivery_that_no_frame_can_hold_spends_its_attempts_and_lets_its_neighbours_pass(
    platform_dsn: DSN, credentials: dict[str, Any]
) -> None:
    async with node_with(platform_dsn, credentials, Limits(frame_bytes=2_000)) as (node, api, subscription):
        one, large, other = [(await api.submit()).json()["task"]["task_id"] for _ in range(3)]
        await change(
            node, f"UPDATE events SET event = CONCAT('[\"', REPEAT('a', 2000), '\"]') WHERE task_id = '{large}'"
        )
        async with EventsClient.open(node.base_url, credentials["token"], subscription) as client:
            await client.capacity(3)
            passed = [event_of(await client.delivery())["task_id"] for _ in range(2)]

            assert passed == [one, other]
            page = (await api.http.get(f"/v1/subscriptions/{subscription}/deliveries")).json()
            assert [(row["state"], row["attempts"]) for row in page["deliveries"]] == [("LEASED", 1)] * 3


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a":1,}', "body.event: invalid JSON at byte 7: a member name is missing"),
        ('{"a":1,"a":1}', "body.event: invalid JSON at byte 7: a member name occurs twice in an object"),
        (r'{"a":"\ud800"}', "body.event: invalid JSON at byte 6: half of a surrogate pair"),
        ('{"a":' + "[" * 30 + "]" * 30 + "}", "body.event: invalid JSON at byte 34: nested more than 30 levels deep"),
        # Read on a thread.
        ('{"a":"' + "x" * 40_000 + '",}', "body.event: invalid JSON at byte 40008: a member name is missing"),
        ("7", "body.event: must be an object"),
    ],
    ids=["comma", "twice", "surrogate", "deep", "large", "number"],
)
async def test_an_event_that_was_broken_by_hand_spends_its_attempts_and_lets_its_neighbours_pass(
    platform_dsn: DSN, credentials: dict[str, Any], text: str, reason: str
) -> None:
    async with node_with(platform_dsn, credentials, Limits()) as (node, api, subscription):
        one, broken, other = [(await api.submit()).json()["task"]["task_id"] for _ in range(3)]
        await rows(node, "UPDATE events SET event = :text WHERE task_id = :task_id", text=text, task_id=broken)
        with capture_logs() as logs:
            async with EventsClient.open(node.base_url, credentials["token"], subscription) as client:
                await client.capacity(3)
                passed = [event_of(await client.delivery())["task_id"] for _ in range(2)]
                # The connection is as good as before.
                await client.capacity(3)

        assert passed == [one, other]
        assert [line["reason"] for line in logs if line["event"] == "delivery cannot be sent"] == [reason]
        page = (await api.http.get(f"/v1/subscriptions/{subscription}/deliveries")).json()
        assert [(row["state"], row["attempts"]) for row in page["deliveries"]] == [("LEASED", 1)] * 3


async def test_an_event_as_deep_as_a_frame_can_hold_is_delivered(
    platform_dsn: DSN, credentials: dict[str, Any]
) -> None:
    async with node_with(platform_dsn, credentials, Limits()) as (node, api, subscription):
        task = (await api.submit()).json()["task"]["task_id"]
        deepest = '{"deep":' + "[" * 29 + "]" * 29 + ","
        await change(node, f"UPDATE events SET event = CONCAT('{deepest}', SUBSTR(event, 2)) WHERE task_id = '{task}'")
        async with EventsClient.open(node.base_url, credentials["token"], subscription) as client:
            await client.capacity(1)

            assert "deep" in event_of(await client.delivery())


async def test_a_draining_node_leases_nothing_more_and_still_takes_acknowledgements(
    platform_dsn: DSN, credentials: dict[str, Any]
) -> None:
    async with node_with(platform_dsn, credentials, Limits()) as (node, api, subscription):
        await api.submit()
        async with EventsClient.open(node.base_url, credentials["token"], subscription) as client:
            await client.capacity(1)
            held = await client.delivery()
            node.platform.draining.set()
            await api.submit()
            (receipt,) = await client.ack(held.proof)
            await client.capacity(2)
            await client.capacity(2)

            assert str(receipt.disposition) == "ACKED"
            page = (await api.http.get(f"/v1/subscriptions/{subscription}/deliveries")).json()
            assert [(row["state"], row["attempts"]) for row in page["deliveries"]] == [("ACKED", 1), ("PENDING", 0)]


async def test_a_defect_ends_the_conversation_with_1011_and_says_nothing_of_itself(
    platform_dsn: DSN, credentials: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("a row's value")

    monkeypatch.setattr("orbit.server.services.deliveries.claim", broken)
    async with (
        node_with(platform_dsn, credentials, Limits()) as (node, _, subscription),
        EventsClient.open(node.base_url, credentials["token"], subscription) as client,
    ):
        with suppress(Closed, Refusal):
            await client.capacity(1)

        assert await client.closed() == 1011
        assert client.ended == Ended("INTERNAL", "internal error")
        assert client.connection.close_reason == "internal error"

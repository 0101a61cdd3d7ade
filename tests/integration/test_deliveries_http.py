"""Deliveries as an operator sees them over HTTP: listed, expired, granted more attempts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from orbit.protocol.limits import Limits
from orbit.protocol.values import new_id
from tests.support.events_client import DEADLINE_S, EventsClient, event_of
from tests.support.platform import Api, Node, fresh_credentials, running_node

if TYPE_CHECKING:
    import httpx

    from orbit.mysql.dsn import DSN


async def grant(api: Api, delivery_id: str, attempts: Any = 1, key: str | None = None) -> httpx.Response:
    headers = {"Idempotency-Key": key or new_id()}
    return await api.http.post(f"/v1/deliveries/{delivery_id}/grant", json={"attempts": attempts}, headers=headers)


async def listed(api: Api, subscription: str, **query: str) -> dict[str, Any]:
    answer = await api.http.get(f"/v1/subscriptions/{subscription}/deliveries", params=query)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def subscribed(api: Api, events: int, **given: Any) -> str:
    """A subscription to task.submitted and as many events."""
    subscription = str((await api.subscribe(event_types=["task.submitted"], **given)).json()["subscription_id"])
    for _ in range(events):
        await api.submit()
    return subscription


async def test_a_failing_handler_expires_a_delivery_the_next_is_withheld_and_a_grant_lets_it_through(
    platform_dsn: DSN, credentials: dict[str, Any]
) -> None:
    limits = Limits(delivery_lease_s=1, node_poll_s=0.05)
    async with running_node(platform_dsn, limits=limits) as node, Api(node.base_url, credentials) as api:
        subscription = await subscribed(api, 2, window=1, attempt_budget=2)
        async with EventsClient.open(node.base_url, credentials["token"], subscription) as consumer:
            await consumer.capacity(5)
            for attempt in (1, 2):
                failing = await consumer.delivery()
                assert failing.attempt == attempt
                await consumer.release(failing.proof, started=True)
            async with asyncio.timeout(DEADLINE_S):
                while (await listed(api, subscription))["deliveries"][0]["state"] != "EXPIRED":
                    await asyncio.sleep(0.02)

            expired, withheld = (await listed(api, subscription))["deliveries"]
            assert (expired["delivery_id"], expired["attempts"]) == (failing.proof.delivery_id, 2)
            assert (withheld["state"], withheld["attempts"]) == ("PENDING", 0)
            assert consumer.deliveries.empty()

            granted = await grant(api, expired["delivery_id"])
            assert (granted.status_code, granted.json()["state"], granted.json()["attempt_budget"]) == (
                200,
                "PENDING",
                3,
            )
            mended = await consumer.delivery()
            assert (mended.proof.delivery_id, mended.attempt) == (expired["delivery_id"], 3)
            await consumer.ack(mended.proof)
            following = await consumer.delivery()
            assert following.proof.delivery_id == withheld["delivery_id"]
            await consumer.ack(following.proof)

        assert [one["state"] for one in (await listed(api, subscription))["deliveries"]] == ["ACKED", "ACKED"]


async def test_a_listed_delivery_shows_its_lease_but_neither_its_proof_nor_its_event(node: Node, api: Api) -> None:
    subscription = await subscribed(api, 1)
    token = api.http.headers["Authorization"].removeprefix("Bearer ")
    async with EventsClient.open(node.base_url, token, subscription) as consumer:
        await consumer.capacity(1)
        held = await consumer.delivery()
        (leased,) = (await listed(api, subscription))["deliveries"]
        await consumer.ack(held.proof)
    (acked,) = (await listed(api, subscription))["deliveries"]

    always = {"delivery_id", "subscription_id", "event_id", "state", "attempts", "attempt_budget", "epoch"}
    always |= {"created_at", "updated_at"}
    assert leased.keys() == always | {"lease_until"}
    assert acked.keys() == always | {"acked_at"}
    assert (leased["event_id"], leased["epoch"]) == (event_of(held)["event_id"], "1")
    assert leased["lease_until"] == held.to_body()["delivery"]["lease_until"]


async def test_pages_go_through_all_deliveries_in_order(api: Api) -> None:
    subscription = await subscribed(api, 5)
    whole = (await listed(api, subscription))["deliveries"]
    assert len(whole) == 5

    first = await listed(api, subscription, limit="3")
    second = await listed(api, subscription, limit="3", after=first["next"])

    assert first["deliveries"] + second["deliveries"] == whole
    assert "next" not in second
    assert "next" not in await listed(api, subscription, limit="5")


@pytest.mark.parametrize(
    "query", [{"limit": "0"}, {"limit": "201"}, {"limit": "x"}, {"after": "x"}, {"state": "ACKED"}]
)
async def test_a_query_that_is_not_understood_is_refused(api: Api, query: dict[str, str]) -> None:
    subscription = await subscribed(api, 0)

    answer = await api.http.get(f"/v1/subscriptions/{subscription}/deliveries", params=query)

    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_ARGUMENT")


async def test_a_cursor_of_another_subscription_is_refused(api: Api) -> None:
    one, other = await subscribed(api, 0), await subscribed(api, 1)
    (foreign,) = (await listed(api, other))["deliveries"]

    answer = await api.http.get(f"/v1/subscriptions/{one}/deliveries", params={"after": foreign["delivery_id"]})

    # Both subscriptions got the event, each has a delivery of its own.
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_ARGUMENT")


@pytest.mark.parametrize("attempts", [0, 101, -1, 1.0, 1.5, "1", True, None])
async def test_a_grant_is_a_plain_integer_from_1_to_100(api: Api, attempts: Any) -> None:
    subscription = await subscribed(api, 1)
    (one,) = (await listed(api, subscription))["deliveries"]

    answer = await grant(api, one["delivery_id"], attempts)

    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_ARGUMENT")
    assert (await listed(api, subscription))["deliveries"] == [one]


async def test_a_grant_needs_its_operation_key_and_counts_once_for_it(api: Api) -> None:
    subscription, key = await subscribed(api, 1), new_id()
    (one,) = (await listed(api, subscription))["deliveries"]
    url = f"/v1/deliveries/{one['delivery_id']}/grant"

    keyless = await api.http.post(url, json={"attempts": 100})
    granted = await asyncio.gather(*(grant(api, one["delivery_id"], 100, key) for _ in range(8)))
    other_content = await grant(api, one["delivery_id"], 99, key)

    assert (keyless.status_code, keyless.json()["code"]) == (400, "INVALID_ARGUMENT")
    assert [(answer.status_code, answer.json()["attempt_budget"]) for answer in granted] == [(200, 110)] * 8
    assert (other_content.status_code, other_content.json()["code"]) == (409, "IDEMPOTENCY_CONFLICT")


async def test_what_belongs_to_others_or_nobody_does_not_exist(node: Node, api: Api, platform_dsn: DSN) -> None:
    subscription = await subscribed(api, 1)
    (one,) = (await listed(api, subscription))["deliveries"]
    async with Api(node.base_url, await fresh_credentials(platform_dsn)) as stranger:
        answers = [
            await grant(stranger, one["delivery_id"]),
            await grant(api, new_id()),
            await stranger.http.get(f"/v1/subscriptions/{subscription}/deliveries"),
            await api.http.get(f"/v1/subscriptions/{new_id()}/deliveries"),
        ]

    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(404, "NOT_FOUND")] * 4


async def test_a_credential_of_another_queue_or_without_the_permission_is_denied(
    node: Node, api: Api, credentials: dict[str, Any], platform_dsn: DSN
) -> None:
    subscription = await subscribed(api, 1)
    (one,) = (await listed(api, subscription))["deliveries"]
    names = {name: credentials[name] for name in ("application", "namespace", "environment")}
    others = [
        await fresh_credentials(platform_dsn, **names, queue="another"),
        await fresh_credentials(platform_dsn, **names, queue=credentials["queue"], event_access=False),
    ]
    for other in others:
        async with Api(node.base_url, other) as denied:
            answers = [
                await grant(denied, one["delivery_id"]),
                await denied.http.get(f"/v1/subscriptions/{subscription}/deliveries"),
            ]
        assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(403, "PERMISSION_DENIED")] * 2
    assert (await listed(api, subscription))["deliveries"] == [one]

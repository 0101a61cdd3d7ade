"""A node whose COMMIT is not answered guesses nothing: the same proof, reported again, gets the receipt."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from orbit.protocol.values import new_id
from tests.support.deliveries import end_leases
from tests.support.events_client import EventsClient, Refusal, socket
from tests.support.platform import Api, Node, running_node
from toxiproxy import CutAfterStatement, CutBeforeCommit, DropCommitOk, End, Fault, MySQLProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orbit.mysql.dsn import DSN

LOST = [DropCommitOk(End.FIN), DropCommitOk(End.RST), DropCommitOk(End.RST, keep_bytes=5)]
NEVER_SENT = [CutBeforeCommit(End.FIN), CutBeforeCommit(End.RST)]


class Behind:
    """A node behind a fault proxy, and one beside it that looks and changes things without the proxy.

    The node's sweeper is stopped: the only transactions through the proxy are those that the test asks for.
    """

    def __init__(self, proxy: MySQLProxy, node: Node, beside: Api, token: str, subscription_id: str) -> None:
        self.proxy = proxy
        self.node = node
        self.beside = beside
        self.token = token
        self.subscription_id = subscription_id

    def consumer(self) -> Any:
        """A greeted consumer of the node behind the proxy."""
        return EventsClient.open(self.node.base_url, self.token, self.subscription_id)

    async def deliveries(self) -> list[dict[str, Any]]:
        """What the other node shows."""
        answer = await self.beside.http.get(f"/v1/subscriptions/{self.subscription_id}/deliveries")
        return list(answer.json()["deliveries"])

    async def states(self) -> list[tuple[str, int]]:
        """State and attempts, oldest first."""
        return [(one["state"], one["attempts"]) for one in await self.deliveries()]


@pytest.fixture
async def behind(platform_dsn: DSN, credentials: dict[str, Any], api: Api) -> AsyncIterator[Behind]:
    made = await api.subscribe(event_types=["task.submitted"])
    async with MySQLProxy(*platform_dsn.hosts[0]) as proxy, unswept_node(platform_dsn, proxy) as node:
        yield Behind(proxy, node, api, credentials["token"], made.json()["subscription_id"])


@asynccontextmanager
async def unswept_node(dsn: DSN, proxy: MySQLProxy) -> AsyncIterator[Node]:
    async with running_node(dsn.with_host("127.0.0.1", proxy.port)) as node:
        sweeping = node.app.state.sweeping
        sweeping.cancel()
        with suppress(asyncio.CancelledError):
            await sweeping
        yield node


@asynccontextmanager
async def holding_one(behind: Behind) -> AsyncIterator[tuple[EventsClient, Any]]:
    """A consumer with one delivery and no capacity for another, so that the node claims no more."""
    await behind.beside.submit()
    async with behind.consumer() as consumer:
        await consumer.capacity(1)
        held = await consumer.delivery()
        await consumer.capacity(0)
        yield consumer, held


@pytest.mark.parametrize("fault", LOST, ids=str)
async def test_an_ack_whose_commit_is_not_answered_is_unavailable_and_the_same_proof_gets_its_receipt(
    behind: Behind, fault: Fault
) -> None:
    async with holding_one(behind) as (consumer, held):
        armed = behind.proxy.arm(fault)
        with pytest.raises(Refusal) as refused:
            await consumer.ack(held.proof)
        assert armed.fired
        assert refused.value.code == "UNAVAILABLE"
        (committed,) = await behind.deliveries()
        assert committed["state"] == "ACKED"

        (receipt,) = await consumer.ack(held.proof)

    assert receipt.to_body()["disposition"] == "ACKED"
    assert receipt.to_body()["acked_at"] == committed["acked_at"]
    assert await behind.states() == [("ACKED", 1)]


@pytest.mark.parametrize("fault", NEVER_SENT, ids=str)
async def test_an_ack_whose_commit_never_arrived_is_unavailable_as_well_and_counts_when_it_is_reported_again(
    behind: Behind, fault: Fault
) -> None:
    async with holding_one(behind) as (consumer, held):
        armed = behind.proxy.arm(fault)
        with pytest.raises(Refusal) as refused:
            await consumer.ack(held.proof)
        assert armed.fired
        assert refused.value.code == "UNAVAILABLE"
        assert await behind.states() == [("LEASED", 1)]

        (receipt,) = await consumer.ack(held.proof)

    assert str(receipt.disposition) == "ACKED"
    assert await behind.states() == [("ACKED", 1)]


@pytest.mark.parametrize("fault", [*LOST[:1], *NEVER_SENT[:1]], ids=str)
async def test_a_release_that_is_reported_again_gives_back_one_attempt(behind: Behind, fault: Fault) -> None:
    async with holding_one(behind) as (consumer, held):
        armed = behind.proxy.arm(fault)
        with pytest.raises(Refusal):
            await consumer.release(held.proof, started=False)
        assert armed.fired

        (verdict,) = await consumer.release(held.proof, started=False)

    assert str(verdict.disposition) == "RELEASED"
    assert await behind.states() == [("PENDING", 0)]


async def test_a_claim_whose_commit_is_not_answered_is_not_pushed_and_comes_back_with_its_lease(
    behind: Behind, platform_dsn: DSN
) -> None:
    await behind.beside.submit()
    async with behind.consumer() as consumer:
        armed = behind.proxy.arm(DropCommitOk(End.FIN))
        await consumer.capacity(1)
        await armed.wait(20)
        await consumer.capacity(1)
        assert await behind.states() == [("LEASED", 1)]
        assert consumer.deliveries.empty()

        await end_leases(platform_dsn, behind.subscription_id)
        again = await consumer.delivery()

    assert (again.attempt, again.proof.epoch) == (2, 2)


async def test_a_grant_whose_commit_is_not_answered_is_settled_by_the_same_key(behind: Behind) -> None:
    key = new_id()
    mine = {"queue_id": "", "token": behind.token}
    async with holding_one(behind) as (_, held), Api(behind.node.base_url, mine) as api:
        armed = behind.proxy.arm(DropCommitOk(End.FIN))
        url = f"/v1/deliveries/{held.proof.delivery_id}/grant"
        lost = await api.http.post(url, json={"attempts": 3}, headers={"Idempotency-Key": key})
        assert armed.fired
        assert (lost.status_code, lost.json()["code"]) == (503, "UNAVAILABLE")

        again = await api.http.post(url, json={"attempts": 3}, headers={"Idempotency-Key": key})

    assert (again.status_code, again.json()["attempt_budget"]) == (200, 13)


async def test_a_hello_without_a_database_is_refused_with_try_again_later(behind: Behind) -> None:
    async with socket(behind.node.base_url, behind.token) as connection:
        client = EventsClient(connection)
        client._reading = asyncio.create_task(client._read())
        armed = behind.proxy.arm(CutAfterStatement(1))
        with pytest.raises(Refusal) as refused:
            await client.greet(behind.subscription_id)

        assert armed.fired
        assert refused.value.code == "UNAVAILABLE"
        assert await client.closed() == 1013

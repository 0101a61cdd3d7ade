"""The consumer behind a relay that drops, cuts and holds single frames, on a real platform over real MySQL."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from orbit.protocol.limits import Limits
from orbit.sdk import OrbitClient
from tests.support.clients import cancelled, saved, states, subscribe
from tests.support.consuming import Script, consuming, counted
from tests.support.platform import fresh_credentials, running_node
from tests.support.rows import rows
from toxiproxy import CutAtFrame, End, FrameRelay, HoldFrame

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orbit.mysql.dsn import DSN
    from tests.support.platform import Node

# The real time of a control operation is 10 s; a lost answer teaches the same in half a second.
IMPATIENT = Limits(control_s=0.5)


def over(node: Node) -> FrameRelay:
    address = urlsplit(node.base_url)
    assert address.hostname is not None
    assert address.port is not None
    return FrameRelay(address.hostname, address.port)


@pytest.fixture
async def relay(node: Node) -> AsyncIterator[FrameRelay]:
    async with over(node) as running:
        yield running


@pytest.fixture
async def direct(node: Node, credentials: dict[str, Any], tmp_path: Path) -> AsyncIterator[OrbitClient]:
    """A client beside the relay."""
    async with OrbitClient(node.base_url, saved(tmp_path / "credentials.json", credentials)) as opened:
        yield opened


@dataclass(frozen=True)
class Short:
    """A node of the test's own with leases of a second, a relay in front of it, and a client beside the relay."""

    relay: FrameRelay
    direct: OrbitClient


@pytest.fixture
async def short(platform_dsn: DSN, tmp_path: Path) -> AsyncIterator[Short]:
    async with running_node(platform_dsn, limits=Limits(delivery_lease_s=1.0)) as node:
        credentials = saved(tmp_path / "short.json", await fresh_credentials(platform_dsn))
        async with over(node) as relay, OrbitClient(node.base_url, credentials) as direct:
            yield Short(relay, direct)


def acks(relay: FrameRelay) -> int:
    """How many event.ack frames the client sent."""
    return sum(entry.point.name == "CLIENT_FRAME" and entry.command == "event.ack" for entry in relay.journal)


async def test_an_ack_whose_answer_is_dropped_is_reported_again_with_the_same_proof(
    node: Node, relay: FrameRelay, direct: OrbitClient
) -> None:
    subscription_id = await subscribe(direct)
    armed = relay.drop("ack", answers="event.ack")
    script = Script()
    client = OrbitClient(relay.url, direct.credentials, limits=IMPATIENT)
    async with consuming(client, subscription_id, script) as consumer:
        await cancelled(direct)
        await armed.wait(20)
        [(state, epoch, first_acked_at)] = await rows(node, DELIVERY, subscription_id=subscription_id)
        assert (state, epoch, consumer.counts.acknowledged) == ("ACKED", 1, 0)
        counts = await counted(consumer, lambda counts: counts.acknowledged == 1)
    assert armed.fired
    assert acks(relay) == 2
    # One receipt: the second report found the first one and changed nothing.
    assert await rows(node, DELIVERY, subscription_id=subscription_id) == [("ACKED", 1, first_acked_at)]
    assert await states(direct, subscription_id) == [("ACKED", 1)]
    assert len(script.calls) == 1
    assert (counts.received, counts.pending, counts.reconnects) == (1, 0, 1)


@pytest.mark.parametrize("end", [End.FIN, End.RST])
async def test_a_connection_cut_before_the_verdict_costs_nothing(
    relay: FrameRelay, direct: OrbitClient, end: End
) -> None:
    subscription_id = await subscribe(direct)
    armed = relay.arm(CutAtFrame("ack", answers="event.ack", end=end))
    script = Script()
    async with consuming(OrbitClient(relay.url, direct.credentials), subscription_id, script) as consumer:
        await cancelled(direct)
        counts = await counted(consumer, lambda counts: counts.acknowledged == 1)
    assert armed.fired
    assert await states(direct, subscription_id) == [("ACKED", 1)]
    assert (len(script.calls), counts.received, counts.reconnects) == (1, 1, 1)


async def test_an_ack_cut_on_its_way_is_reported_on_the_next_connection(relay: FrameRelay, direct: OrbitClient) -> None:
    subscription_id = await subscribe(direct)
    armed = relay.arm(CutAtFrame("event.ack", direction="client"))
    script = Script()
    async with consuming(OrbitClient(relay.url, direct.credentials), subscription_id, script) as consumer:
        await cancelled(direct)
        await counted(consumer, lambda counts: counts.acknowledged == 1)
    assert armed.fired
    assert await states(direct, subscription_id) == [("ACKED", 1)]
    assert len(script.calls) == 1


async def test_a_half_open_link_is_noticed_and_replaced(short: Short) -> None:
    # The platform still believes in the dead connection and may lease to it once more.
    subscription_id = await subscribe(short.direct, attempt_budget=100)
    # From the confirmation of the second capacity on, nothing passes and nothing is closed.
    armed = short.relay.arm(CutAtFrame("ack", answers="consumer.capacity", nth=2, end=End.SILENCE))
    script = Script()
    client = OrbitClient(short.relay.url, short.direct.credentials, limits=Limits(control_s=0.5, heartbeat_s=0.2))
    async with consuming(client, subscription_id, script) as consumer:
        await armed.wait(20)
        await cancelled(short.direct)
        counts = await counted(consumer, lambda counts: counts.acknowledged == 1)
    assert armed.fired
    assert counts.reconnects == 1
    assert len(script.calls) == 1


async def test_a_welcome_that_is_dropped_costs_a_dial(relay: FrameRelay, direct: OrbitClient) -> None:
    subscription_id = await subscribe(direct)
    armed = relay.drop("consumer.welcome")
    client = OrbitClient(relay.url, direct.credentials, limits=IMPATIENT)
    async with consuming(client, subscription_id, Script()) as consumer:
        await cancelled(direct)
        await counted(consumer, lambda counts: counts.acknowledged == 1)
    assert armed.fired


async def test_a_delivery_that_is_dropped_comes_again_when_its_lease_ends(short: Short) -> None:
    subscription_id = await subscribe(short.direct)
    armed = short.relay.drop("event.deliver")
    script = Script()
    client = OrbitClient(short.relay.url, short.direct.credentials)
    async with consuming(client, subscription_id, script) as consumer:
        await cancelled(short.direct)
        await counted(consumer, lambda counts: counts.acknowledged == 1)
    assert armed.fired
    assert [call.attempt for call in script.calls] == [2]
    assert await states(short.direct, subscription_id) == [("ACKED", 2)]


async def test_a_verdict_that_is_held_until_the_consumer_stops_is_waited_for(
    relay: FrameRelay, direct: OrbitClient
) -> None:
    subscription_id = await subscribe(direct)
    released = asyncio.Event()
    armed = relay.arm(HoldFrame("ack", answers="event.ack", until=released))
    script = Script()
    async with consuming(OrbitClient(relay.url, direct.credentials), subscription_id, script) as consumer:
        await cancelled(direct)
        await armed.wait(20)
        stopping = asyncio.create_task(consumer.stop(10.0))
        await asyncio.sleep(0)
        assert consumer.counts.pending == 1
        released.set()
        await stopping
        assert (consumer.counts.acknowledged, consumer.counts.pending) == (1, 0)
    assert armed.fired


DELIVERY = "SELECT state, epoch, acked_at FROM deliveries WHERE subscription_id = :subscription_id"

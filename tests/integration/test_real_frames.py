"""What the SDK and a real platform say to each other is what the published schemas describe, in both directions."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from orbit.protocol import events_v1, worker_v1
from orbit.protocol.frame import ACK, ERROR
from orbit.protocol.http_v1 import EventType, RetryPolicy
from orbit.protocol.values import new_id
from orbit.sdk import (
    Delivery,
    EventConsumer,
    Finish,
    OrbitClient,
    Outcome,
    WorkerError,
    new_worker_message_id,
    new_worker_registration,
)
from orbit.sdk.channel import Channel
from tests.support.clients import saved, subscribe, task
from tests.support.published import check_frame
from tests.support.worker_client import TEXT
from tests.support.working import WAIT_S, failure, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.platform import Node


class Passing:
    """The frames that passed through the SDK's channels, each checked as it passes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.subprotocol = worker_v1.SUBPROTOCOL
        self.types: list[tuple[str, str]] = []
        send, receive = Channel.send, Channel.receive

        async def checked_send(channel: Channel, data: bytes) -> None:
            self._check("client", data)
            await send(channel, data)

        async def checked_receive(channel: Channel) -> bytes:
            data = await receive(channel)
            self._check("server", data)
            return data

        monkeypatch.setattr(Channel, "send", checked_send)
        monkeypatch.setattr(Channel, "receive", checked_receive)

    def _check(self, sender: Any, data: bytes) -> None:
        check_frame(self.subprotocol, sender, data)
        self.types.append((sender, json.loads(data)["type"]))


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Passing:
    return Passing(monkeypatch)


@pytest.fixture
async def client(node: Node, credentials: dict[str, Any], tmp_path: Path) -> AsyncIterator[OrbitClient]:
    async with OrbitClient(node.base_url, saved(tmp_path / "credentials.json", credentials)) as opened:
        yield opened


async def test_a_workers_frames(client: OrbitClient, passing: Passing) -> None:
    policy = RetryPolicy(max_attempts=2, initial_delay_ms=1, max_delay_ms=1)
    await client.submit_task(new_id(), task(client, retry=policy, priority=9, concurrency_key="customer:42"))
    registration = new_worker_registration(
        client.credentials.queue_id, 4, [TEXT], cancellation_notifications=True, concurrency_keys=True
    )
    async with working(client, registration) as connection:
        for outcome in (Outcome.FAILED, Outcome.SUCCEEDED):
            assignment = await asyncio.wait_for(connection.next_assignment(), WAIT_S)
            attempt = assignment.attempt
            assert assignment.task.concurrency_key == "customer:42"
            await connection.resume(new_worker_message_id(), attempt)
            await connection.start(new_worker_message_id(), attempt)
            await connection.renew(new_worker_message_id(), attempt)
            failed = outcome is Outcome.FAILED
            report = Finish(
                attempt=attempt,
                outcome=outcome,
                result='{"n":18446744073709551617.10}',
                error_code="TEMPORARY_REJECTION" if failed else None,
                retryable=failed,
            )
            await connection.finish(new_worker_message_id(), report)
        await failure(connection.start(new_worker_message_id(), attempt), WorkerError)
        await connection.finish(
            new_worker_message_id(), Finish(attempt=attempt, outcome=Outcome.UNKNOWN, error_code="X")
        )
    vocabulary = worker_v1.VOCABULARY
    assert set(passing.types) == {
        ("client", vocabulary.hello),
        *(("client", name) for name in vocabulary.requests),
        *(("server", name) for name in (vocabulary.welcome, ACK, ERROR, "task.assign")),
    }


async def test_a_consumers_frames(client: OrbitClient, passing: Passing) -> None:
    passing.subprotocol = events_v1.SUBPROTOCOL
    subscription_id = await subscribe(client, event_types=[EventType.CANCELLED, EventType.SUBMITTED])
    accepted = await client.submit_task(new_id(), task(client))
    await client.cancel_task(accepted.task.task_id)
    seen: list[str] = []

    async def handler(delivery: Delivery) -> None:
        seen.append(delivery.event.event_type)
        if delivery.event.event_type == EventType.SUBMITTED:
            raise ValueError("not acknowledged")

    consumer = EventConsumer(client, subscription_id, handler)
    running = asyncio.create_task(consumer.run())
    async with asyncio.timeout(WAIT_S):
        while (consumer.counts.acknowledged, consumer.counts.failed) != (1, 1):
            await asyncio.sleep(0.01)
        await consumer.stop(drain_s=WAIT_S)
        await running
    assert sorted(seen) == [EventType.CANCELLED, EventType.SUBMITTED]
    vocabulary = events_v1.VOCABULARY
    assert set(passing.types) == {
        ("client", vocabulary.hello),
        *(("client", name) for name in vocabulary.requests),
        *(("server", name) for name in (vocabulary.welcome, ACK, *vocabulary.pushes)),
    }

"""`OrbitClient` for tests of a real platform, and the few calls that most of them need."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from orbit.protocol.http_v1 import CreateSubscription, EventType, SubmitTask
from orbit.protocol.values import new_id
from orbit.sdk import Credentials, OrbitClient

if TYPE_CHECKING:
    from pathlib import Path


def saved(path: Path, content: dict[str, Any]) -> Credentials:
    """The credentials as a program reads them: from the file that bootstrap writes."""
    path.touch(0o600)
    path.write_text(json.dumps(content))
    return Credentials.load(path)


def task(client: OrbitClient, **given: Any) -> SubmitTask:
    """The least that a submit may hold, and `given`."""
    return SubmitTask(
        **{
            "queue_id": client.credentials.queue_id,
            "handler": "text.normalize",
            "handler_version": "v1",
            "payload_version": "v1",
            "payload": Raw(b'{"n":18446744073709551617.10}'),
            **given,
        }
    )


async def subscribe(client: OrbitClient, **given: Any) -> str:
    """Subscribe to task.cancelled, or as given; the subscription's id."""
    content = {"queue_id": client.credentials.queue_id, "event_types": [EventType.CANCELLED], **given}
    return (await client.create_subscription(new_id(), CreateSubscription(**content))).subscription_id


async def cancelled(client: OrbitClient) -> str:
    """Submit a task and cancel it; its id."""
    task_id = (await client.submit_task(new_id(), task(client))).task.task_id
    await client.cancel_task(task_id)
    return task_id


async def states(client: OrbitClient, subscription_id: str) -> list[tuple[str, int]]:
    """State and attempts of each delivery, oldest first."""
    page = await client.list_deliveries(subscription_id, limit=100)
    return [(one.state.value, one.attempts) for one in page.deliveries]

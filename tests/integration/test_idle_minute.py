"""The one idle time that nobody shortened: each end gives up a link that is silent for the protocol's minute."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from orbit.protocol.limits import Limits
from orbit.sdk import WorkerDisconnected
from tests.support.worker_client import WorkerClient, registration
from tests.support.working import at_work

if TYPE_CHECKING:
    from tests.support.platform import Api, Node

DEADLINE_S = 90.0


async def test_a_link_that_is_silent_for_a_minute_is_given_up_by_both_ends(
    api: Api, node: Node, credentials: dict[str, Any]
) -> None:
    """A worker that says nothing to a node, and a platform that says nothing to the SDK, at the same time."""
    assert Limits().read_idle_s == 60.0
    hello = registration(api.queue_id)
    async with (
        WorkerClient.open(node.base_url, credentials["token"], hello, capacity=1) as worker,
        at_work() as (_, connection),
        asyncio.timeout(DEADLINE_S),
    ):
        await asyncio.gather(worker.connection.wait_closed(), connection.done())

        assert (worker.connection.close_code, worker.connection.close_reason) == (1008, "idle")
        assert isinstance(connection.error, WorkerDisconnected)
        assert str(connection.error) == "nothing came for too long"

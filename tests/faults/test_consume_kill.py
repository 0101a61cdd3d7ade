"""A receiver that dies between its COMMIT and its ACK: the next one finds the event, and acknowledges it."""

from __future__ import annotations

import signal
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.receiver import Bench, bench
from tests.support.receiver_process import (
    ReceiverProcess,
    cancelled_task,
    deliveries,
    message,
    outcome,
    receiver_variables,
    subscribe,
    until_deliveries,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orbit.mysql.dsn import DSN
    from tests.support.mysql import ReceiverDSNs
    from tests.support.platform import Api, Node


@pytest.fixture
async def receiver(receiver_dsns: ReceiverDSNs) -> AsyncIterator[Bench]:
    async with bench(receiver_dsns) as made:
        yield made


@pytest.mark.timeout(180)
async def test_a_receiver_killed_between_commit_and_ack_leaves_a_duplicate_for_the_next_one(
    tmp_path: Path, receiver: Bench, node: Node, credentials: dict[str, Any], api: Api, platform_dsn: DSN
) -> None:
    subscription_id = await subscribe(api)
    variables = receiver_variables(
        tmp_path, url=node.base_url, credentials=credentials, dsn=receiver.dsns.run, subscription_id=subscription_id
    )
    points = "tests.support.receiver_points"
    async with ReceiverProcess("hold-after-commit", variables=variables, module=points) as killed:
        task_id = await cancelled_task(api)
        (held,) = await killed.logged(message("held after commit"))
        # Committed on one side, leased and not acknowledged on the other, as both databases say.
        assert list(receiver.applied_flags()) == [held["event_id"]]
        before = receiver.view()
        (leased,) = deliveries(platform_dsn, subscription_id)
        assert (leased["state"], leased["attempts"], leased["event_id"]) == ("LEASED", 1, held["event_id"])
        assert leased["lease_until"] - leased["updated_at"] == timedelta(seconds=30)
        killed.send(signal.SIGKILL)
        assert await killed.ended() == (-signal.SIGKILL, "")
    async with ReceiverProcess("consume", variables=variables) as successor:
        await successor.logged(message("consuming"))
        (duplicate,) = await successor.logged(outcome("duplicate"), within_s=60)
        (acked,) = await until_deliveries(
            platform_dsn, subscription_id, lambda rows: [row["state"] for row in rows] == ["ACKED"]
        )
        successor.send(signal.SIGTERM)
        assert await successor.ended() == (0, "")
    assert (duplicate["event_id"], duplicate["task_id"]) == (held["event_id"], task_id)
    assert duplicate["delivery_attempt"] == 2
    assert (acked["delivery_id"], acked["attempts"]) == (leased["delivery_id"], 2)
    # Nobody shortened the real lease.
    assert acked["acked_at"] >= leased["lease_until"]
    assert receiver.view() == before
    assert before["applied_events"] == 1

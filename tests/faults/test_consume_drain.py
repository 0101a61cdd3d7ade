"""SIGTERM with every place taken: what commits is acknowledged, nothing else is, and nobody's attempt is wasted."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.receiver import Bench, bench
from tests.support.receiver_process import (
    ReceiverProcess,
    cancelled_task,
    deliveries,
    message,
    outcome,
    platform_rows,
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

HANDLERS = 4
WAITING = 16


@pytest.fixture
async def receiver(receiver_dsns: ReceiverDSNs) -> AsyncIterator[Bench]:
    async with bench(receiver_dsns) as made:
        yield made


async def test_sigterm_with_four_in_handlers_and_sixteen_waiting(
    tmp_path: Path, receiver: Bench, node: Node, credentials: dict[str, Any], api: Api, platform_dsn: DSN
) -> None:
    subscription_id = await subscribe(api)
    for _ in range(HANDLERS + WAITING):
        await cancelled_task(api)
    gates = tmp_path / "gates"
    gates.mkdir()
    variables = receiver_variables(
        tmp_path, url=node.base_url, credentials=credentials, dsn=receiver.dsns.run, subscription_id=subscription_id
    )
    async with ReceiverProcess(
        "gate", variables={**variables, "GATE": str(gates)}, module="tests.support.receiver_points"
    ) as process:
        at_gate = [line["event_id"] for line in await process.logged(message("at the gate"), count=HANDLERS)]
        await until_deliveries(
            platform_dsn, subscription_id, lambda rows: [row["state"] for row in rows] == ["LEASED"] * len(rows)
        )
        process.send(signal.SIGTERM)
        await process.logged(message("draining"))
        # Two transactions end within the drain, two never do.
        for event_id in at_gate[:2]:
            (gates / event_id).touch()
        assert await process.ended(10) == (0, "")
    assert len(await process.logged(message("at the gate"))) == HANDLERS
    committed = set(receiver.applied_flags())
    assert committed == set(at_gate[:2])
    rows = deliveries(platform_dsn, subscription_id)
    assert {row["event_id"] for row in rows if row["state"] == "ACKED"} == committed
    attempts = {row["event_id"]: row["attempts"] for row in rows}
    assert [attempts[event_id] for event_id in at_gate] == [1] * HANDLERS
    waiting = [row for row in rows if row["event_id"] not in at_gate]
    assert [(row["state"], row["attempts"]) for row in waiting] == [("PENDING", 0)] * WAITING
    assert platform_rows(
        platform_dsn, "SELECT enabled FROM subscriptions WHERE subscription_id = %s", subscription_id
    ) == [{"enabled": 1}]
    assert len(await process.logged(outcome("applied"))) == 2


async def test_a_second_signal_ends_the_receiver_at_once_with_1(
    tmp_path: Path, receiver: Bench, node: Node, credentials: dict[str, Any], api: Api, platform_dsn: DSN
) -> None:
    subscription_id = await subscribe(api)
    await cancelled_task(api)
    variables = receiver_variables(
        tmp_path, url=node.base_url, credentials=credentials, dsn=receiver.dsns.run, subscription_id=subscription_id
    )
    async with ReceiverProcess(
        "gate", variables={**variables, "GATE": str(tmp_path)}, module="tests.support.receiver_points"
    ) as process:
        await process.logged(message("at the gate"))
        process.send(signal.SIGTERM)
        await process.logged(message("draining"))
        process.send(signal.SIGINT)
        code, out = await process.ended(6)
    assert (code, out) == (1, "")
    assert receiver.inbox() == []
    assert [row["state"] for row in deliveries(platform_dsn, subscription_id)] == ["LEASED"]

"""A consuming receiver whose COMMIT gets no answer: it acknowledges what it then finds, and nothing in doubt."""

from __future__ import annotations

import asyncio
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
    receiver_variables,
    subscribe,
    until_deliveries,
)
from toxiproxy.faults import CutBeforeCommit, DropCommitOk, End, Fault, HoldCommit
from toxiproxy.mysql_proxy import MySQLProxy

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


@pytest.fixture
async def proxy(receiver: Bench) -> AsyncIterator[MySQLProxy]:
    async with MySQLProxy(*receiver.dsns.run.hosts[0]) as running:
        yield running


@pytest.fixture
async def subscription_id(api: Api) -> str:
    return await subscribe(api)


@pytest.fixture
def variables(
    tmp_path: Path,
    receiver: Bench,
    proxy: MySQLProxy,
    node: Node,
    credentials: dict[str, Any],
    subscription_id: str,
) -> dict[str, str]:
    through = receiver.dsns.run.with_host("127.0.0.1", proxy.port)
    return receiver_variables(
        tmp_path, url=node.base_url, credentials=credentials, dsn=through, subscription_id=subscription_id
    )


@pytest.mark.parametrize(
    ("fault", "word"), [(DropCommitOk(End.RST), "duplicate"), (CutBeforeCommit(End.FIN), "applied")]
)
async def test_an_unconfirmed_commit_is_settled_inside_the_lease_and_then_acknowledged(
    receiver: Bench,
    proxy: MySQLProxy,
    variables: dict[str, str],
    subscription_id: str,
    api: Api,
    platform_dsn: DSN,
    fault: Fault,
    word: str,
) -> None:
    armed = proxy.arm(fault)
    async with ReceiverProcess("consume", variables=variables) as process:
        await cancelled_task(api)
        (again,) = await process.logged(message("event tried again"))
        (line,) = await process.logged(outcome(word))
        (row,) = await until_deliveries(platform_dsn, subscription_id, lambda rows: rows[0]["state"] == "ACKED")
        process.send(signal.SIGTERM)
        assert await process.ended() == (0, "")
    assert armed.fired
    assert (again["failure"], again["outcome"]) == ("CommitUnconfirmed", "unconfirmed")
    assert (line["delivery_attempt"], row["attempts"]) == (1, 1)
    assert receiver.view()["applied_events"] == 1


async def test_a_commit_still_in_doubt_at_the_end_of_a_drain_is_not_acknowledged(
    receiver: Bench,
    proxy: MySQLProxy,
    variables: dict[str, str],
    subscription_id: str,
    api: Api,
    platform_dsn: DSN,
) -> None:
    release = asyncio.Event()
    armed = proxy.arm(HoldCommit(release))
    async with ReceiverProcess("consume", variables=variables) as process:
        await cancelled_task(api)
        await armed.wait(30)
        process.send(signal.SIGTERM)
        (line,) = await process.logged(outcome("unconfirmed"))
        assert await process.ended(10) == (0, "")
    assert line["failure"] == "CommitUnconfirmed"
    release.set()
    await armed.wait_finished(30)
    # It was committed after all. Nobody was told, so the platform will deliver it again.
    assert receiver.view()["applied_events"] == 1
    assert [row["state"] for row in deliveries(platform_dsn, subscription_id)] == ["LEASED"]

"""The receiver's MySQL is away for a minute: nothing is lost, and no attempt is spent beyond those already started."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from receiver.consume import CONCURRENCY
from tests.support.mysql import receiver_accounts
from tests.support.receiver import bench
from tests.support.receiver_process import (
    ReceiverProcess,
    cancelled_task,
    deliveries,
    message,
    receiver_variables,
    subscribe,
    until_deliveries,
)

if TYPE_CHECKING:
    from pathlib import Path

    from orbit.mysql.dsn import DSN
    from orbit.sandbox import MySQLServer
    from tests.support.platform import Api, Node

OUTAGE_S = 60.0


@pytest.mark.timeout(240)
async def test_an_outage_of_a_minute_spends_no_attempt_beyond_those_started(
    tmp_path: Path, own_mysql: MySQLServer, node: Node, credentials: dict[str, Any], api: Api, platform_dsn: DSN
) -> None:
    control = own_mysql.control
    assert control is not None
    accounts = receiver_accounts(own_mysql, own_mysql.create_database("receiver"))
    async with bench(accounts) as receiver:
        subscription_id = await subscribe(api)
        variables = receiver_variables(
            tmp_path, url=node.base_url, credentials=credentials, dsn=accounts.run, subscription_id=subscription_id
        )
        async with ReceiverProcess("consume", variables=variables) as process:
            await cancelled_task(api)
            await until_deliveries(platform_dsn, subscription_id, lambda rows: rows[0]["state"] == "ACKED")
            await asyncio.to_thread(control.kill)
            away_since = time.monotonic()
            for _ in range(12):
                await cancelled_task(api)
            await process.logged(lambda line: line.get("paused") is True)
            # What waited is given back a moment after that line; from then on nothing more may be spent.
            await until_deliveries(
                platform_dsn, subscription_id, lambda rows: sum(row["attempts"] for row in rows[1:]) <= CONCURRENCY
            )
            while time.monotonic() < away_since + OUTAGE_S:
                spent = sum(row["attempts"] for row in deliveries(platform_dsn, subscription_id)[1:])
                assert spent <= CONCURRENCY
                await asyncio.sleep(0.5)
            assert await process.logged(message("database still unavailable"), count=3)
            await asyncio.to_thread(control.start)
            await process.logged(message("database available again"), within_s=60)
            rows = await until_deliveries(
                platform_dsn,
                subscription_id,
                lambda rows: [row["state"] for row in rows] == ["ACKED"] * 13,
                within_s=60,
            )
            process.send(signal.SIGTERM)
            assert await process.ended() == (0, "")
        spent_twice = [row["attempts"] for row in rows if row["attempts"] > 1]
        assert len(spent_twice) <= CONCURRENCY
        assert set(spent_twice) <= {2}
        assert len(receiver.inbox()) == len(receiver.views()) == 13
        assert {view["applied_events"] for view in receiver.views()} == {1}


async def test_a_receiver_that_waits_for_its_database_still_drains_at_once(
    tmp_path: Path, own_mysql: MySQLServer, node: Node, credentials: dict[str, Any], api: Api, platform_dsn: DSN
) -> None:
    control = own_mysql.control
    assert control is not None
    accounts = receiver_accounts(own_mysql, own_mysql.create_database("receiver"))
    async with bench(accounts):
        subscription_id = await subscribe(api)
        variables = receiver_variables(
            tmp_path, url=node.base_url, credentials=credentials, dsn=accounts.run, subscription_id=subscription_id
        )
        async with ReceiverProcess("consume", variables=variables) as process:
            await process.logged(message("consuming"))
            await asyncio.to_thread(control.kill)
            await cancelled_task(api)
            await process.logged(lambda line: line.get("paused") is True)
            process.send(signal.SIGTERM)
            assert await process.ended(10) == (0, "")
        assert [row["state"] for row in deliveries(platform_dsn, subscription_id)] == ["LEASED"]

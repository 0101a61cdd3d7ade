"""Somebody lowers max_allowed_packet below what start-up demands while the receiver runs: no event is to blame."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from orbit.mysql.errors import Kind, NotCommitted
from orbit.protocol.limits import Limits
from orbit.sandbox.server import admin_cursor
from receiver.consume import CONCURRENCY
from receiver.outcome import Applied
from tests.support.events import an_event
from tests.support.mysql import receiver_accounts
from tests.support.platform import running_node
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
    from orbit.sandbox import MySQLServer
    from tests.support.platform import Api

# The server takes what fits into its buffer of 16 KiB (net_buffer_length) whatever the limit says.
LOWERED = 32 * 1024
PADDING = 64 * 1024
COUNT = 6
# Attempts that were spent come back after their lease; of a lease's real length another test waits out the whole.
LEASE_S = 8


@pytest.fixture
async def receiver(own_mysql: MySQLServer) -> AsyncIterator[Bench]:
    async with bench(receiver_accounts(own_mysql, own_mysql.create_database("receiver"))) as made:
        yield made


def set_limit(server: MySQLServer, size: int) -> int:
    """Set max_allowed_packet of connections made from now on; what it was."""
    with admin_cursor(server.admin) as cursor:
        cursor.execute("SELECT @@GLOBAL.max_allowed_packet")
        row = cursor.fetchone()
        assert row is not None
        cursor.execute("SET GLOBAL max_allowed_packet = %s", (size,))
    return int(row[0])


async def test_the_store_blames_the_setting_and_applies_the_same_event_once_it_is_restored(
    own_mysql: MySQLServer, receiver: Bench
) -> None:
    store = receiver.store()
    event = an_event(1, result={"text": "x" * PADDING})
    before = set_limit(own_mysql, LOWERED)
    with pytest.raises(NotCommitted) as caught:
        await store.apply(event)
    assert (caught.value.errno, caught.value.kind) == (1153, Kind.CONFIGURATION)
    assert receiver.inbox() == receiver.views() == []

    set_limit(own_mysql, before)
    assert await store.apply(event) == Applied(applied=True, duplicate=False)
    assert receiver.view()["applied_events"] == 1


async def test_consume_takes_nothing_more_names_the_setting_and_goes_on_once_it_is_restored(
    tmp_path: Path,
    own_mysql: MySQLServer,
    receiver: Bench,
    credentials: dict[str, Any],
    api: Api,
    platform_dsn: DSN,
) -> None:
    subscription_id = await subscribe(api)
    assert (await api.http.post(f"/v1/subscriptions/{subscription_id}/pause", json={})).status_code == 200
    tasks = [await cancelled_task(api) for _ in range(COUNT)]
    platform_rows(
        platform_dsn,
        "UPDATE events JOIN deliveries USING (event_id) SET event = REPLACE(event, '{', CONCAT('{\"note\":\"',"
        " REPEAT('x', %s), '\",')) WHERE subscription_id = %s",
        PADDING, subscription_id,
    )  # fmt: skip
    async with running_node(platform_dsn, limits=Limits(delivery_lease_s=LEASE_S)) as node:
        variables = receiver_variables(
            tmp_path, url=node.base_url, credentials=credentials, dsn=receiver.dsns.run, subscription_id=subscription_id
        )
        async with ReceiverProcess("consume", variables=variables) as process:
            # Start-up has passed; the lanes that store events are not connected yet.
            await process.logged(message("consuming"))
            before = set_limit(own_mysql, LOWERED)
            assert (await api.http.post(f"/v1/subscriptions/{subscription_id}/resume", json={})).status_code == 200
            (refused, *_) = await process.logged(message("database refused"))
            assert refused["reason"] == "max_allowed_packet is 32768, needed: at least 4194304"
            (line, *_) = await process.logged(outcome("unavailable"))
            assert (line["kind"], line["paused"], line["errno"]) == ("configuration", True, 1153)
            # What waited is handed back: no more attempts are spent than handlers had begun.
            rows = await until_deliveries(
                platform_dsn, subscription_id, lambda rows: sum(row["attempts"] for row in rows) <= CONCURRENCY
            )
            assert "ACKED" not in {row["state"] for row in rows}
            assert receiver.inbox() == []

            set_limit(own_mysql, before)
            await process.logged(message("database available again"), within_s=60)
            await until_deliveries(
                platform_dsn, subscription_id, lambda rows: {row["state"] for row in rows} == {"ACKED"}, within_s=60
            )
            process.send(signal.SIGTERM)
            assert await process.ended() == (0, "")
    assert [line for line in process.log if outcome("invalid")(line)] == []
    assert {row["attempts"] for row in deliveries(platform_dsn, subscription_id)} <= {1, 2}
    assert {view["task_id"] for view in receiver.views()} == set(tasks)
    assert {view["applied_events"] for view in receiver.views()} == {1}

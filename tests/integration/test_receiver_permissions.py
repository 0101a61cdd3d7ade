"""Exactly which permissions the commands need: with these they work, without any one of them they do not."""

from __future__ import annotations

import hashlib
import signal
from typing import TYPE_CHECKING, Any

import pytest

from orbit.sandbox.server import admin_cursor
from tests.support.platform import fresh_credentials
from tests.support.receiver import Bench, bench
from tests.support.receiver_process import (
    ReceiverProcess,
    cancelled_task,
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

CONSUME = frozenset({"events:read", "events:consume"})
DEMO = CONSUME | {"events:manage", "tasks:submit", "tasks:cancel"}


@pytest.fixture
async def receiver(receiver_dsns: ReceiverDSNs) -> AsyncIterator[Bench]:
    async with bench(receiver_dsns) as made:
        yield made


async def narrow(platform: DSN, credentials: dict[str, Any], permissions: frozenset[str]) -> dict[str, Any]:
    """Make another credential on the same names, with these permissions alone."""
    names = {name: credentials[name] for name in ("application", "namespace", "environment", "queue")}
    made = await fresh_credentials(platform, **names)
    with admin_cursor(platform) as cursor:
        changed = cursor.execute(
            "UPDATE credentials SET permissions = %s WHERE token_sha256 = %s",
            (" ".join(sorted(permissions)), hashlib.sha256(made["token"].encode()).hexdigest()),
        )
    assert changed == 1
    return made


async def test_two_permissions_are_enough_to_consume(
    tmp_path: Path, receiver: Bench, node: Node, credentials: dict[str, Any], api: Api, platform_dsn: DSN
) -> None:
    subscription_id = await subscribe(api)
    await cancelled_task(api)
    narrowed = await narrow(platform_dsn, credentials, CONSUME)
    variables = receiver_variables(
        tmp_path, url=node.base_url, credentials=narrowed, dsn=receiver.dsns.run, subscription_id=subscription_id
    )
    async with ReceiverProcess("consume", variables=variables) as process:
        await until_deliveries(platform_dsn, subscription_id, lambda rows: rows[0]["state"] == "ACKED")
        process.send(signal.SIGTERM)
        assert await process.ended() == (0, "")


@pytest.mark.parametrize("missing", sorted(CONSUME))
async def test_consume_without_one_of_its_permissions_ends_with_1_and_takes_nothing(
    tmp_path: Path, receiver: Bench, node: Node, credentials: dict[str, Any], api: Api, platform_dsn: DSN, missing: str
) -> None:
    subscription_id = await subscribe(api)
    await cancelled_task(api)
    narrowed = await narrow(platform_dsn, credentials, CONSUME - {missing})
    variables = receiver_variables(
        tmp_path, url=node.base_url, credentials=narrowed, dsn=receiver.dsns.run, subscription_id=subscription_id
    )
    async with ReceiverProcess("consume", variables=variables) as process:
        assert await process.ended() == (1, "")
    assert process.noise[-1].startswith("error: HTTP 403 PERMISSION_DENIED")
    (row,) = await until_deliveries(platform_dsn, subscription_id, lambda rows: len(rows) == 1)
    assert (row["state"], row["attempts"]) == ("PENDING", 0)


async def test_five_permissions_are_enough_for_the_demo(
    tmp_path: Path, receiver: Bench, node: Node, credentials: dict[str, Any], platform_dsn: DSN
) -> None:
    narrowed = await narrow(platform_dsn, credentials, DEMO)
    variables = receiver_variables(tmp_path, url=node.base_url, credentials=narrowed, dsn=receiver.dsns.run)
    async with ReceiverProcess("demo", variables=variables) as process:
        code, _ = await process.ended()
    assert code == 0, (process.log, process.noise)


@pytest.mark.parametrize("missing", ["events:consume", "events:manage", "tasks:cancel", "tasks:submit"])
async def test_the_demo_without_one_of_its_permissions_ends_with_1_and_prints_nothing(
    tmp_path: Path, receiver: Bench, node: Node, credentials: dict[str, Any], platform_dsn: DSN, missing: str
) -> None:
    narrowed = await narrow(platform_dsn, credentials, DEMO - {missing})
    variables = receiver_variables(tmp_path, url=node.base_url, credentials=narrowed, dsn=receiver.dsns.run)
    async with ReceiverProcess("demo", variables=variables) as process:
        assert await process.ended() == (1, "")
    assert process.noise[-1].startswith("error: HTTP 403 PERMISSION_DENIED")
    assert receiver.inbox() == []

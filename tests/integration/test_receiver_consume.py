"""`receiver consume` as a process: what it takes, what it refuses, what it says about each event."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.platform import fresh_credentials
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


@pytest.fixture
async def receiver(receiver_dsns: ReceiverDSNs) -> AsyncIterator[Bench]:
    async with bench(receiver_dsns) as made:
        yield made


@pytest.fixture
def variables(tmp_path: Path, node: Node, credentials: dict[str, Any], receiver: Bench) -> dict[str, str]:
    return receiver_variables(tmp_path, url=node.base_url, credentials=credentials, dsn=receiver.dsns.run)


def all_acked(count: int) -> Any:
    return lambda rows: [row["state"] for row in rows] == ["ACKED"] * count


async def test_every_event_is_stored_acknowledged_and_has_one_line(
    receiver: Bench, variables: dict[str, str], api: Api, platform_dsn: DSN
) -> None:
    subscription_id = await subscribe(api)
    tasks = [await cancelled_task(api) for _ in range(8)]
    async with ReceiverProcess("consume", variables={**variables, "ORBIT_SUBSCRIPTION_ID": subscription_id}) as process:
        rows = await until_deliveries(platform_dsn, subscription_id, all_acked(8))
        lines = await process.logged(outcome("applied"), count=8)
        process.send(signal.SIGTERM)
        assert await process.ended() == (0, "")
    assert {view["task_id"] for view in receiver.views()} == set(tasks)
    assert {row["attempts"] for row in rows} == {1}
    assert {(line["event_id"], line["task_id"]) for line in lines} == {
        (row["event_id"], row["task_id"]) for row in rows
    }
    for line in lines:
        assert (line["level"], line["outcome"], line["delivery_attempt"]) == ("info", "applied", 1)
    (stopped,) = await process.logged(message("stopped"))
    assert (stopped["received"], stopped["acknowledged"], stopped["applied"], stopped["pending"]) == (8, 8, 8, 0)
    assert platform_rows(
        platform_dsn, "SELECT enabled FROM subscriptions WHERE subscription_id = %s", subscription_id
    ) == [{"enabled": 1}]


async def test_two_receivers_of_one_name_share_a_subscription_and_apply_each_event_once(
    receiver: Bench, variables: dict[str, str], api: Api, platform_dsn: DSN
) -> None:
    subscription_id = await subscribe(api)
    given = {**variables, "ORBIT_SUBSCRIPTION_ID": subscription_id}
    async with ReceiverProcess("consume", variables=given) as one, ReceiverProcess("consume", variables=given) as two:
        await one.logged(message("consuming"))
        await two.logged(message("consuming"))
        await asyncio.gather(*(cancelled_task(api) for _ in range(30)))
        await until_deliveries(platform_dsn, subscription_id, all_acked(30))
        for process in (one, two):
            process.send(signal.SIGTERM)
            assert await process.ended() == (0, "")
    assert len(receiver.inbox()) == len(receiver.views()) == 30
    assert {view["applied_events"] for view in receiver.views()} == {1}


async def test_a_subscription_of_another_queue_is_refused_and_its_deliveries_keep_their_attempts(
    tmp_path: Path, receiver: Bench, node: Node, credentials: dict[str, Any], api: Api, platform_dsn: DSN
) -> None:
    subscription_id = await subscribe(api)
    await cancelled_task(api)
    other = await fresh_credentials(
        platform_dsn, application=credentials["application"], namespace=credentials["namespace"], queue="other"
    )
    variables = receiver_variables(
        tmp_path, url=node.base_url, credentials=credentials, dsn=receiver.dsns.run, subscription_id=subscription_id
    )
    async with ReceiverProcess("consume", variables={**variables, "ORBIT_QUEUE_ID": other["queue_id"]}) as process:
        assert await process.ended() == (1, "")
    (error,) = process.noise
    assert f"is bound to queue {credentials['queue_id']}, configured is {other['queue_id']}" in error
    assert [(row["state"], row["attempts"]) for row in deliveries(platform_dsn, subscription_id)] == [("PENDING", 0)]


async def test_a_subscription_with_other_than_result_events_is_refused_untouched(
    receiver: Bench, variables: dict[str, str], api: Api, platform_dsn: DSN
) -> None:
    subscription_id = await subscribe(api, event_types=["task.submitted", "task.cancelled"])
    await cancelled_task(api)
    async with ReceiverProcess("consume", variables={**variables, "ORBIT_SUBSCRIPTION_ID": subscription_id}) as process:
        assert await process.ended() == (1, "")
    (error,) = process.noise
    assert error.endswith("has task.submitted; the receiver takes results only")
    assert {row["attempts"] for row in deliveries(platform_dsn, subscription_id)} == {0}
    assert receiver.inbox() == []


async def test_a_database_of_another_shape_is_refused_by_name_with_nothing_taken(
    receiver: Bench, variables: dict[str, str], api: Api, platform_dsn: DSN
) -> None:
    subscription_id = await subscribe(api)
    await cancelled_task(api)
    receiver.sql("ALTER TABLE receiver_inbox MODIFY event JSON NOT NULL")
    async with ReceiverProcess("consume", variables={**variables, "ORBIT_SUBSCRIPTION_ID": subscription_id}) as process:
        assert await process.ended() == (1, "")
    assert process.noise[0].startswith("error: receiver_inbox.event type is json, needed: mediumtext")
    assert [row["attempts"] for row in deliveries(platform_dsn, subscription_id)] == [0]


async def test_an_account_without_a_privilege_is_refused_with_nothing_taken(
    receiver: Bench, variables: dict[str, str], api: Api, platform_dsn: DSN
) -> None:
    subscription_id = await subscribe(api)
    await cancelled_task(api)
    receiver.sql(f"REVOKE UPDATE ON `{receiver.dsns.run.database}`.* FROM %s@'%%'", receiver.dsns.run.user)
    async with ReceiverProcess("consume", variables={**variables, "ORBIT_SUBSCRIPTION_ID": subscription_id}) as process:
        assert await process.ended() == (1, "")
    (error,) = process.noise
    assert "errno=1142 kind=configuration" in error
    assert [row["attempts"] for row in deliveries(platform_dsn, subscription_id)] == [0]


async def test_conflicts_are_not_acknowledged_and_said_loudly_while_their_neighbours_are_stored(
    receiver: Bench, variables: dict[str, str], api: Api, platform_dsn: DSN
) -> None:
    subscription_id = await subscribe(api)
    tasks = [await cancelled_task(api) for _ in range(4)]
    rows = deliveries(platform_dsn, subscription_id)
    taken = {row["task_id"]: row["event_id"] for row in rows}
    queue_id = api.queue_id
    # One event is known with other content, and one task has its version from another event.
    receiver.sql(
        "INSERT INTO receiver_inbox VALUES ('task-result-view', %s, %s, '{}', REPEAT('0', 64), 1, UTC_TIMESTAMP(6))",
        queue_id, taken[tasks[0]],
    )  # fmt: skip
    (task,) = platform_rows(platform_dsn, "SELECT version FROM tasks WHERE task_id = %s", tasks[1])
    receiver.sql(
        "INSERT INTO receiver_task_views VALUES ('task-result-view', %s, %s, %s, REPEAT('f', 32), 'SUCCEEDED', NULL, 1,"
        " UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))",
        queue_id, tasks[1], task["version"],
    )  # fmt: skip
    async with ReceiverProcess("consume", variables={**variables, "ORBIT_SUBSCRIPTION_ID": subscription_id}) as process:
        (known,) = await process.logged(outcome("event_conflict"))
        (clash,) = await process.logged(outcome("version_conflict"))
        await process.logged(outcome("applied"), count=2)
        rows = await until_deliveries(
            platform_dsn, subscription_id, lambda rows: sum(row["state"] == "ACKED" for row in rows) == 2
        )
        process.send(signal.SIGTERM)
        assert await process.ended() == (0, "")
    assert (known["level"], known["event_id"], known["recorded_sha256"]) == ("error", taken[tasks[0]], "0" * 64)
    assert (clash["level"], clash["event_id"]) == ("error", taken[tasks[1]])
    acked = {row["task_id"] for row in rows if row["state"] == "ACKED"}
    assert acked == set(tasks[2:])
    assert taken[tasks[1]] not in {row["event_id"] for row in receiver.inbox()}


async def test_invalid_events_fail_alone_loudly_and_their_neighbours_are_stored(
    receiver: Bench, variables: dict[str, str], api: Api, platform_dsn: DSN
) -> None:
    subscription_id = await subscribe(api)
    tasks = [await cancelled_task(api) for _ in range(4)]
    events = {row["task_id"]: row["event_id"] for row in deliveries(platform_dsn, subscription_id)}
    for task_id, change in (
        (tasks[0], """REPLACE(event, '"state":"CANCELLED"', '"state":"SUCCEEDED"')"""),
        (tasks[2], """REPLACE(event, '"state":"CANCELLED"', '"result":null,"state":"CANCELLED"')"""),
    ):
        platform_rows(platform_dsn, f"UPDATE events SET event = {change} WHERE event_id = %s", events[task_id])
    async with ReceiverProcess("consume", variables={**variables, "ORBIT_SUBSCRIPTION_ID": subscription_id}) as process:
        lines = await process.logged(outcome("invalid"), count=2)
        rows = await until_deliveries(
            platform_dsn, subscription_id, lambda rows: sum(row["state"] == "ACKED" for row in rows) == 2
        )
        process.send(signal.SIGTERM)
        assert await process.ended() == (0, "")
    assert {line["event_id"]: (line["level"], line["reason"]) for line in lines} == {
        events[tasks[0]]: ("error", "event.state: does not belong to the event type"),
        events[tasks[2]]: ("error", "event.result: must not be null"),
    }
    assert {row["task_id"] for row in rows if row["state"] == "ACKED"} == {tasks[1], tasks[3]}
    assert {view["task_id"] for view in receiver.views()} == {tasks[1], tasks[3]}
    (stopped,) = await process.logged(message("stopped"))
    assert (stopped["invalid"], stopped["applied"], stopped["reconnects"]) == (2, 2, 0)


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_while_orbit_does_not_answer_the_start_ends_it_at_once_with_0(
    variables: dict[str, str], which: signal.Signals
) -> None:
    asked = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        given = {**variables, "ORBIT_URL": f"http://127.0.0.1:{port}", "ORBIT_SUBSCRIPTION_ID": "0" * 32}
        async with ReceiverProcess("consume", variables=given) as process:
            await asyncio.wait_for(asked.wait(), 30)
            process.send(which)
            # The request would wait 10 s for its answer.
            assert await process.ended(5) == (0, "")
    assert [line["message"] for line in process.log] == ["stopped before anything was taken"]

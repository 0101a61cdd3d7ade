"""`receiver init` and `receiver demo` as processes: each printed field against the rows of both databases."""

from __future__ import annotations

import asyncio
import re
import signal
from typing import TYPE_CHECKING, Any

import pytest

from orbit.protocol.values import new_id
from receiver.demo import Demo, DemoFailed, demo
from receiver.outcome import Applied
from receiver.settings import load
from tests.support.receiver import NAME, Bench, bench
from tests.support.receiver_process import (
    ReceiverProcess,
    deliveries,
    message,
    platform_rows,
    receiver_variables,
)
from toxiproxy.faults import DropCommitOk, DropFrame, HoldCommit
from toxiproxy.frame_relay import FrameRelay
from toxiproxy.mysql_proxy import MySQLProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orbit.mysql.dsn import DSN
    from orbit.sdk import Delivery
    from tests.support.mysql import ReceiverDSNs
    from tests.support.platform import Node

LINES = re.compile(
    r"task=([0-9a-f]{32}) state=([A-Z_]+) inbox_duplicate=(true|false) applied_events=(\d+)\n"
    r"ack_confirmed=(\d+) pending=(\d+) subscription_enabled=(true|false)\n"
)
INIT_LINE = "receiver_schema_initialized=true foreign_keys=0\n"


@pytest.fixture
async def receiver(receiver_dsns: ReceiverDSNs) -> AsyncIterator[Bench]:
    async with bench(receiver_dsns) as made:
        yield made


@pytest.fixture
def variables(tmp_path: Path, node: Node, credentials: dict[str, Any], receiver: Bench) -> dict[str, str]:
    return receiver_variables(tmp_path, url=node.base_url, credentials=credentials, dsn=receiver.dsns.run)


def subscriptions(platform: DSN, queue_id: str) -> list[dict[str, Any]]:
    return platform_rows(platform, "SELECT * FROM subscriptions WHERE queue_id = %s", queue_id)


async def test_init_prints_its_line_once_and_fails_the_second_time(receiver_dsns: ReceiverDSNs) -> None:
    variables = {"ORBIT_RECEIVER_DSN": receiver_dsns.init.render()}
    async with ReceiverProcess("init", variables=variables) as process:
        assert await process.ended() == (0, INIT_LINE)
    async with ReceiverProcess("init", variables=variables) as process:
        assert await process.ended() == (1, "")
    assert process.noise == ["error: receiver_inbox exists already; init runs once, in an empty database"]


async def test_every_printed_field_is_what_both_databases_hold(
    receiver: Bench, variables: dict[str, str], platform_dsn: DSN, credentials: dict[str, Any]
) -> None:
    async with ReceiverProcess("demo", variables=variables) as process:
        code, out = await process.ended()
    assert code == 0, (process.log, process.noise)
    printed = LINES.fullmatch(out)
    assert printed is not None, out
    task_id = printed[1]
    assert printed.groups()[1:] == ("CANCELLED", "true", "1", "1", "0", "false")

    (task,) = platform_rows(platform_dsn, "SELECT * FROM tasks WHERE queue_id = %s", credentials["queue_id"])
    assert (task["task_id"], task["state"]) == (task_id, "CANCELLED")
    (subscription,) = subscriptions(platform_dsn, credentials["queue_id"])
    assert subscription["enabled"] == 0
    (delivery,) = deliveries(platform_dsn, subscription["subscription_id"])
    assert (delivery["state"], delivery["attempts"], delivery["task_id"]) == ("ACKED", 1, task_id)

    (row,) = receiver.inbox()
    (event,) = platform_rows(platform_dsn, "SELECT * FROM events WHERE event_id = %s", row["event_id"])
    assert event["task_id"] == task_id
    assert (row["consumer_name"], row["queue_id"], row["applied"]) == (NAME, credentials["queue_id"], 1)
    assert delivery["event_id"] == row["event_id"]
    view = receiver.view()
    assert (view["task_id"], view["state"], view["result"]) == (task_id, "CANCELLED", None)
    assert (view["last_event_id"], view["applied_events"]) == (row["event_id"], 1)


async def test_a_second_demo_makes_new_identities_beside_the_first(receiver: Bench, variables: dict[str, str]) -> None:
    tasks = []
    for _ in range(2):
        async with ReceiverProcess("demo", variables=variables) as process:
            code, out = await process.ended()
        assert code == 0, (process.log, process.noise)
        printed = LINES.fullmatch(out)
        assert printed is not None
        tasks.append(printed[1])
    assert sorted(tasks) == [view["task_id"] for view in receiver.views()]
    assert len(set(tasks)) == 2


async def test_a_lost_ok_of_commit_makes_the_demo_print_nothing_false(
    receiver: Bench, variables: dict[str, str], credentials: dict[str, Any], platform_dsn: DSN
) -> None:
    async with MySQLProxy(*receiver.dsns.run.hosts[0]) as proxy:
        armed = proxy.arm(DropCommitOk())
        through = receiver.dsns.run.with_host("127.0.0.1", proxy.port)
        async with ReceiverProcess("demo", variables={**variables, "ORBIT_RECEIVER_DSN": through.render()}) as process:
            code, out = await process.ended()
        assert armed.fired
    assert code == 0, (process.log, process.noise)
    printed = LINES.fullmatch(out)
    assert printed is not None
    assert printed.groups()[1:] == ("CANCELLED", "true", "1", "1", "0", "false")
    assert receiver.view()["applied_events"] == 1
    (unconfirmed,) = await process.logged(message("commit unconfirmed"))
    assert unconfirmed["event_id"] == receiver.inbox()[0]["event_id"]
    (subscription,) = subscriptions(platform_dsn, credentials["queue_id"])
    assert [row["state"] for row in deliveries(platform_dsn, subscription["subscription_id"])] == ["ACKED"]


async def test_another_tasks_event_ends_the_demo_with_1_and_nothing_acknowledged(
    receiver: Bench, variables: dict[str, str], credentials: dict[str, Any], platform_dsn: DSN
) -> None:
    async with ReceiverProcess("stranger", variables=variables, module="tests.support.receiver_points") as process:
        code, out = await process.ended()
    assert (code, out) == (1, ""), (process.log, process.noise)
    assert process.noise[-1].startswith("error: an event of another task came: ")
    # Everything is left for inspection: both tasks and their deliveries, the subscription still taking events.
    (subscription,) = subscriptions(platform_dsn, credentials["queue_id"])
    assert subscription["enabled"] == 1
    left = deliveries(platform_dsn, subscription["subscription_id"])
    assert len(left) == 2
    assert "ACKED" not in {row["state"] for row in left}
    assert receiver.inbox() == []


async def test_an_interrupted_demo_exits_with_130_and_prints_nothing(
    receiver: Bench, variables: dict[str, str], credentials: dict[str, Any], platform_dsn: DSN
) -> None:
    async with MySQLProxy(*receiver.dsns.run.hosts[0]) as proxy:
        armed = proxy.arm(HoldCommit(600.0))
        through = receiver.dsns.run.with_host("127.0.0.1", proxy.port)
        async with ReceiverProcess("demo", variables={**variables, "ORBIT_RECEIVER_DSN": through.render()}) as process:
            await armed.wait(30)
            process.send(signal.SIGINT)
            assert await process.ended() == (130, "")
    (subscription,) = subscriptions(platform_dsn, credentials["queue_id"])
    assert subscription["enabled"] == 1


async def test_a_demo_without_tables_fails_before_it_makes_anything(
    receiver: Bench, variables: dict[str, str], credentials: dict[str, Any], platform_dsn: DSN
) -> None:
    receiver.sql("DROP TABLE receiver_task_views")
    async with ReceiverProcess("demo", variables=variables) as process:
        assert await process.ended() == (1, "")
    assert process.noise == ["error: receiver_task_views is absent, needed: a table"]
    assert subscriptions(platform_dsn, credentials["queue_id"]) == []


async def test_a_demo_whose_event_never_comes_ends_at_its_limit_and_leaves_everything(
    variables: dict[str, str], credentials: dict[str, Any], platform_dsn: DSN, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Forgetful(Demo):
        async def submit_and_cancel(self) -> str:
            return new_id()

    monkeypatch.setattr("receiver.demo.TOTAL_S", 1.0)
    with pytest.raises(DemoFailed, match="it was not done in 1 s"):
        await demo(load(variables), asyncio.Event(), kind=Forgetful)
    (subscription,) = subscriptions(platform_dsn, credentials["queue_id"])
    assert subscription["enabled"] == 1


async def test_a_second_call_that_is_no_duplicate_fails_the_demo_unacknowledged(
    variables: dict[str, str], credentials: dict[str, Any], platform_dsn: DSN
) -> None:
    class Forgetful(Demo):
        async def _settle(self, delivery: Delivery) -> Applied:
            return Applied(applied=True, duplicate=False)

    with pytest.raises(DemoFailed, match="the event was applied, then applied"):
        await demo(load(variables), asyncio.Event(), kind=Forgetful)
    (subscription,) = subscriptions(platform_dsn, credentials["queue_id"])
    assert [row["state"] for row in deliveries(platform_dsn, subscription["subscription_id"])] != ["ACKED"]


@pytest.mark.parametrize(
    "change", ["applied_events = 2", "state = 'SUCCEEDED'", "last_event_id = REPEAT('0', 32)", "task_id = 'x'"]
)
async def test_a_view_that_is_not_the_events_fails_the_demo(
    receiver: Bench, variables: dict[str, str], change: str
) -> None:
    class Meddled(Demo):
        async def _read_view(self, event_id: str) -> tuple[str, int]:
            receiver.sql(f"UPDATE receiver_task_views SET {change}")
            return await super()._read_view(event_id)

    with pytest.raises(DemoFailed, match=r"the view is|the task has no view"):
        await demo(load(variables), asyncio.Event(), kind=Meddled)


async def test_an_ack_whose_answer_never_comes_is_not_printed_as_confirmed(
    variables: dict[str, str], node: Node, receiver: Bench
) -> None:
    host, port = node.base_url.removeprefix("http://").split(":")
    async with FrameRelay(host, int(port)) as relay:
        armed = relay.arm(DropFrame("ack", answers="event.ack"))
        through = {**variables, "ORBIT_URL": f"http://127.0.0.1:{relay.port}"}
        async with ReceiverProcess("demo", variables=through) as process:
            assert await process.ended() == (1, "")
        assert armed.fired
    assert process.noise[-1] == "error: the ACK was not confirmed: 0 confirmed, 1 pending"
    assert receiver.view()["applied_events"] == 1


@pytest.mark.parametrize(
    ("command", "changes", "error"),
    [
        ("init", {"ORBIT_RECEIVER_DSN": ""}, "error: ORBIT_RECEIVER_DSN: is not set, nor is ORBIT_RECEIVER_DSN_FILE"),
        ("demo", {"ORBIT_URL": ""}, "error: ORBIT_URL: is not set"),
        ("demo", {"ORBIT_CREDENTIALS_FILE": "/nonexistent"}, "error: ORBIT_CREDENTIALS_FILE: cannot be read"),
        ("consume", {}, "error: ORBIT_SUBSCRIPTION_ID: is not set"),
        ("consume", {"RECEIVER_NAME": "a b"}, "error: RECEIVER_NAME: must be"),
    ],
)
async def test_a_wrong_setting_exits_with_2_before_anything_is_opened(
    receiver: Bench,
    variables: dict[str, str],
    credentials: dict[str, Any],
    platform_dsn: DSN,
    command: str,
    changes: dict[str, str],
    error: str,
) -> None:
    async with ReceiverProcess(command, variables={**variables, **changes}) as process:
        assert await process.ended() == (2, "")
    (line,) = process.noise
    assert line.startswith(error)
    assert subscriptions(platform_dsn, credentials["queue_id"]) == receiver.inbox() == []


async def test_no_output_holds_a_credential(
    variables: dict[str, str], credentials: dict[str, Any], receiver: Bench
) -> None:
    async with ReceiverProcess("demo", "--log-level", "DEBUG", variables=variables) as process:
        code, out = await process.ended()
    assert code == 0, (process.log, process.noise)
    everything = out + repr(process.log) + repr(process.noise)
    assert credentials["token"] not in everything
    assert receiver.dsns.run.password not in everything

"""GET /v1/tasks/{task_id}/attempts: what became of each attempt, and what was said too late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orbit.protocol.attempt_v1 import Outcome
from orbit.protocol.values import new_id
from tests.support.platform import Api, fresh_credentials
from tests.support.rows import rows
from tests.support.worker_client import WorkerClient, registration, report

if TYPE_CHECKING:
    from orbit.mysql.dsn import DSN
    from tests.support.platform import Node

RETRIES = {"max_attempts": 3, "initial_delay_ms": 1, "max_delay_ms": 1}


async def history(api: Api, task_id: str, **query: Any) -> dict[str, Any]:
    """One page."""
    answer = await api.http.get(f"/v1/tasks/{task_id}/attempts", params=query)
    assert answer.status_code == 200
    page: dict[str, Any] = answer.json()
    return page


async def test_a_task_that_nobody_claimed_has_no_attempts(api: Api) -> None:
    task_id = (await api.submit()).json()["task"]["task_id"]
    assert await history(api, task_id) == {"attempts": []}


async def test_attempts_are_shown_with_outcome_decision_and_late_reports(
    api: Api, node: Node, credentials: dict[str, Any]
) -> None:
    asked: dict[str, Any] = {"retry": RETRIES, "concurrency_key": "k", "recovery_safety": "IDEMPOTENT"}
    task_id = (await api.submit(**asked)).json()["task"]["task_id"]
    hello = registration(api.queue_id, concurrency_keys=True)
    async with WorkerClient.open(node.base_url, credentials["token"], hello, capacity=1) as worker:
        first = (await worker.assignment()).attempt
        await worker.start(first)
        [running] = (await history(api, task_id))["attempts"]
        await worker.finish(report(first, Outcome.FAILED, result='{"n":1.10}', retryable=True))
        second = (await worker.assignment()).attempt
        await worker.start(second)
        await rows(node, "UPDATE attempts SET lease_until = leased_at WHERE attempt_id = :id", id=second.attempt_id)
        third = (await worker.assignment()).attempt
        late_id = new_id()
        await worker.finish(report(second, result='"late"'), late_id)

    one, two, three = (await history(api, task_id))["attempts"]

    assert running["state"] == "RUNNING"
    assert running["started_at"] < running["lease_until"] <= running["timeout_at"]
    assert not running.keys() & {"outcome", "ended_at", "result", "decision", "evidence", "retryable"}
    shared = {"attempt_id": first.attempt_id, "epoch": "1", "instance_id": hello.instance_id}
    assert one.items() >= shared.items()
    assert one.items() >= {"node": node.platform.node, "concurrency_key": "k", "concurrency_token": "1"}.items()
    ended = {"state": "ENDED", "outcome": "FAILED", "error_code": "TEST", "retryable": True, "delay_ms": 1}
    assert one.items() >= (ended | {"decision": "RETRYABLE_FAILURE"}).items()
    assert one["result"] == {"n": 1.10}
    assert one["next_available_at"] > one["ended_at"]
    assert "lease_until" not in one
    assert (two["epoch"], two["outcome"], two["decision"]) == ("2", "LEASE_EXPIRED", "IDEMPOTENT_UNKNOWN")
    [evidence] = two["evidence"]
    assert evidence.items() >= {"message_id": late_id, "outcome": "SUCCEEDED", "result": "late"}.items()
    assert "retryable" not in evidence
    assert (three["attempt_id"], three["epoch"], three["state"]) == (third.attempt_id, "3", "LEASED")
    assert three["concurrency_token"] == "3"
    assert first.lease_secret.reveal() not in str((one, two, three))


async def test_pages_go_on_where_the_last_ended(api: Api, node: Node, credentials: dict[str, Any]) -> None:
    task_id = (await api.submit(retry=RETRIES)).json()["task"]["task_id"]
    async with WorkerClient.open(node.base_url, credentials["token"], registration(api.queue_id), capacity=1) as worker:
        ids = []
        for _ in range(3):
            attempt = (await worker.assignment()).attempt
            ids.append(attempt.attempt_id)
            await worker.start(attempt)
            await worker.finish(report(attempt, Outcome.FAILED, retryable=True))

    first = await history(api, task_id, limit=2)
    second = await history(api, task_id, limit=2, after=first["next"])

    assert [one["attempt_id"] for one in first["attempts"]] == ids[:2]
    assert [one["attempt_id"] for one in second["attempts"]] == ids[2:]
    assert first["next"] == ids[1]
    assert "next" not in second
    other = (await api.submit()).json()["task"]["task_id"]
    answer = await api.http.get(f"/v1/tasks/{other}/attempts", params={"after": ids[0]})
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_ARGUMENT")


async def test_a_page_is_no_larger_than_a_client_reads(api: Api, node: Node, credentials: dict[str, Any]) -> None:
    """Three results of the largest size: no two pages say the same, and each is shorter than the client's 2 MiB."""
    task_id = (await api.submit(retry=RETRIES | {"max_attempts": 4})).json()["task"]["task_id"]
    large = '"' + "x" * (256 * 1024 - 2) + '"'
    async with WorkerClient.open(node.base_url, credentials["token"], registration(api.queue_id), capacity=1) as worker:
        for _ in range(4):
            attempt = (await worker.assignment()).attempt
            await worker.start(attempt)
            await worker.finish(report(attempt, Outcome.FAILED, result=large, retryable=True))

    first = await history(api, task_id)
    second = await history(api, task_id, after=first["next"])

    # 768 KiB hold three of them.
    assert [one["epoch"] for one in first["attempts"]] == ["1", "2", "3"]
    assert [one["epoch"] for one in second["attempts"]] == ["4"]


async def test_histories_of_others_do_not_exist(api: Api, node: Node, platform_dsn: DSN) -> None:
    task_id = (await api.submit()).json()["task"]["task_id"]
    async with Api(node.base_url, await fresh_credentials(platform_dsn)) as stranger:
        assert (await stranger.http.get(f"/v1/tasks/{task_id}/attempts")).status_code == 404
    assert (await api.http.get(f"/v1/tasks/{new_id()}/attempts")).status_code == 404


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "201"}, {"after": "x"}, {"more": "1"}])
async def test_queries_that_mean_nothing_are_refused(api: Api, query: dict[str, str]) -> None:
    task_id = (await api.submit()).json()["task"]["task_id"]
    assert (await api.http.get(f"/v1/tasks/{task_id}/attempts", params=query)).status_code == 400

"""An operator pauses, resumes and limits a queue over HTTP, and the audit says who did."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.platform import Api, fresh_credentials
from tests.support.rows import rows
from tests.support.wire_client import Refusal
from tests.support.worker_client import WorkerClient, registration

if TYPE_CHECKING:
    from orbit.mysql.dsn import DSN
    from tests.support.platform import Node


async def pause(api: Api, queue_id: str | None = None) -> Any:
    """POST …/pause without a body."""
    return await api.http.post(f"/v1/queues/{queue_id or api.queue_id}/pause")


async def resume(api: Api) -> Any:
    """POST …/resume without a body."""
    return await api.http.post(f"/v1/queues/{api.queue_id}/resume")


async def limit(api: Api, **given: Any) -> Any:
    """PUT …/limits."""
    return await api.http.put(f"/v1/queues/{api.queue_id}/limits", json=given)


async def audited(node: Node, queue_id: str) -> list[tuple[str, str, dict[str, Any]]]:
    """(actor, action, details) of what was done to the queue, in order."""
    found = await rows(
        node, "SELECT actor, action, details FROM audit WHERE object_id = :id ORDER BY audit_no", id=queue_id
    )
    return [(actor, action, json.loads(details)) for actor, action, details in found]


async def test_a_pause_is_seen_kept_and_audited_once(api: Api, node: Node) -> None:
    first, second = await pause(api), await pause(api)
    assert (first.status_code, second.status_code) == (200, 200)
    assert first.json() == second.json()
    assert first.json()["paused"] is True
    [shown] = (await api.http.get("/v1/queues")).json()["queues"]
    assert shown == first.json()

    resumed = await resume(api)
    assert resumed.json() == shown | {"paused": False}
    assert (await resume(api)).json() == resumed.json()
    [(credential_id,)] = await rows(node, "SELECT credential_id FROM credentials WHERE queue_id = :id", id=api.queue_id)
    assert await audited(node, api.queue_id) == [
        (credential_id, "queue.pause", {"paused": True}),
        (credential_id, "queue.resume", {"paused": False}),
    ]


async def test_limits_are_replaced_as_a_whole(api: Api, node: Node) -> None:
    both = await limit(api, concurrency_limit=3, start_limit=10, start_window_ms=1_000)
    assert both.status_code == 200
    shown = both.json()
    assert (shown["concurrency_limit"], shown["start_limit"], shown["start_window_ms"]) == (3, 10, 1_000)
    assert (await limit(api, concurrency_limit=3, start_limit=10, start_window_ms=1_000)).json() == shown

    fewer = (await limit(api, concurrency_limit=4)).json()
    assert fewer["concurrency_limit"] == 4
    assert "start_limit" not in fewer
    none = (await limit(api)).json()
    assert "concurrency_limit" not in none
    actions = [(action, details) for _, action, details in await audited(node, api.queue_id)]
    assert actions == [
        ("queue.limits", {"concurrency_limit": 3, "start_limit": 10, "start_window_ms": 1_000}),
        ("queue.limits", {"concurrency_limit": 4, "start_limit": None, "start_window_ms": None}),
        ("queue.limits", {"concurrency_limit": None, "start_limit": None, "start_window_ms": None}),
    ]


@pytest.mark.parametrize(
    "given",
    [
        {"start_limit": 1},
        {"start_window_ms": 1_000},
        {"concurrency_limit": 0},
        {"concurrency_limit": 1_000_001},
        {"start_limit": 1, "start_window_ms": 99},
        {"start_limit": 1, "start_window_ms": 86_400_001},
        {"start_limit": 1.5, "start_window_ms": 1_000},
        {"concurrency_limit": None},
        {"more": 1},
    ],
)
async def test_limits_out_of_bounds_change_nothing(api: Api, node: Node, given: dict[str, Any]) -> None:
    answer = await limit(api, **given)
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_ARGUMENT")
    assert await audited(node, api.queue_id) == []


async def test_controlling_a_queue_takes_its_own_permission_and_queue(
    api: Api, node: Node, platform_dsn: DSN, credentials: dict[str, Any]
) -> None:
    worker = await fresh_credentials(platform_dsn, queue_access=False)
    async with Api(node.base_url, worker) as unprivileged:
        for answer in (await pause(unprivileged), await resume(unprivileged), await limit(unprivileged)):
            assert (answer.status_code, answer.json()["code"]) == (403, "PERMISSION_DENIED")
    names = {name: credentials[name] for name in ("application", "namespace", "environment")}
    neighbour = await fresh_credentials(platform_dsn, **names, queue="other")
    assert (await pause(api, neighbour["queue_id"])).status_code == 403
    assert (await pause(api, worker["queue_id"])).status_code == 404


async def test_a_paused_queue_gives_out_nothing_until_it_is_resumed(
    api: Api, node: Node, credentials: dict[str, Any]
) -> None:
    await pause(api)
    task_id = (await api.submit()).json()["task"]["task_id"]
    async with WorkerClient.open(node.base_url, credentials["token"], registration(api.queue_id), capacity=1) as worker:
        # A question that is answered after the look for tasks would have found one.
        await worker.capacity(1)
        assert worker.assignments.empty()
        await resume(api)
        assert (await worker.assignment()).task.task_id == task_id


async def test_a_start_beyond_the_limit_is_told_and_can_be_asked_for_again(
    api: Api, node: Node, credentials: dict[str, Any]
) -> None:
    for _ in range(2):
        await api.submit()
    async with WorkerClient.open(node.base_url, credentials["token"], registration(api.queue_id), capacity=2) as worker:
        first, second = (await worker.assignment()).attempt, (await worker.assignment()).attempt
        await limit(api, start_limit=1, start_window_ms=86_400_000)
        await worker.start(first)
        message_id = second.attempt_id
        with pytest.raises(Refusal) as caught:
            await worker.start(second, message_id)
        assert caught.value.code == "RATE_LIMITED"
        assert (await worker.resume(second)).active
        await limit(api)
        await worker.start(second, message_id)

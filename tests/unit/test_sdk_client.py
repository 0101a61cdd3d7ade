"""Every call of the client, as the request that it is."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from msgspec import Raw

from orbit.protocol.http_v1 import (
    CreateSubscription,
    EventType,
    QueueLimits,
    Resolution,
    ResolveTask,
    SubmitTask,
    TaskState,
)
from orbit.protocol.values import Secret
from orbit.sdk import Credentials, InvalidRequest, OrbitClient

ID = "0123456789abcdef0123456789abcdef"
QUEUE = "a" * 32
NOW = "2026-11-30T08:00:00Z"
TASK = {
    "task_id": ID,
    "queue_id": QUEUE,
    "handler": "h",
    "handler_version": "v1",
    "payload_version": "v1",
    "payload": {"n": 1},
    "recovery_safety": "RECONCILE_ONLY",
    "task_timeout_ms": 3_600_000,
    "retry": {},
    "state": "WAITING",
    "version": "1",
    "attempt_count": 0,
    "created_at": NOW,
    "updated_at": NOW,
    "deadline_at": NOW,
}
SUBSCRIPTION = {
    "subscription_id": ID,
    "queue_id": QUEUE,
    "event_types": ["task.failed"],
    "enabled": True,
    "window": 64,
    "attempt_budget": 10,
    "created_at": NOW,
    "updated_at": NOW,
}
DELIVERY = {
    "delivery_id": ID,
    "subscription_id": ID,
    "event_id": ID,
    "state": "PENDING",
    "attempts": 0,
    "attempt_budget": 10,
    "created_at": NOW,
    "updated_at": NOW,
}
SUMMARY = {name: TASK[name] for name in TASK.keys() - {"payload", "task_timeout_ms", "retry"}} | {"max_attempts": 1}
QUEUE_SHOWN = {"queue_id": QUEUE, "namespace": "n", "environment": "e", "name": "q", "created_at": NOW}
RESOLVE = ResolveTask(outcome=Resolution.SUCCEEDED, evidence=Raw(b'"ticket"'), result=Raw(b"1"))
SUBMIT = SubmitTask(queue_id=QUEUE, handler="h", handler_version="v1", payload_version="v1", payload=Raw(b'{"n":1.10}'))
SUBSCRIBE = CreateSubscription(queue_id=QUEUE, event_types=[EventType.FAILED])

Call = Callable[[OrbitClient], Awaitable[Any]]
CALLS: dict[str, tuple[Call, str, str, dict[str, Any] | None, str | None, Any]] = {
    "submit_task": (
        lambda client: client.submit_task("key", SUBMIT),
        "POST",
        "/v1/tasks",
        {
            "queue_id": QUEUE,
            "handler": "h",
            "handler_version": "v1",
            "payload_version": "v1",
            "payload": {"n": 1.1},
            "recovery_safety": "RECONCILE_ONLY",
            "task_timeout_ms": 3_600_000,
            "retry": {
                "max_attempts": 1,
                "initial_delay_ms": 1_000,
                "max_delay_ms": 60_000,
                "attempt_timeout_ms": 300_000,
            },
            "priority": 0,
        },
        "key",
        {"task": TASK, "created": True},
    ),
    "list_tasks": (
        lambda client: client.list_tasks(TaskState.NEEDS_REVIEW, after="0" * 48, limit=7),
        "GET",
        f"/v1/tasks?state=NEEDS_REVIEW&after={'0' * 48}&limit=7",
        None,
        None,
        {"tasks": [SUMMARY], "next": "1" * 48},
    ),
    "list_attempts": (
        lambda client: client.list_attempts(ID, after=ID, limit=7),
        "GET",
        f"/v1/tasks/{ID}/attempts?after={ID}&limit=7",
        None,
        None,
        {"attempts": []},
    ),
    "list_events": (
        lambda client: client.list_events(ID, after="3", limit=7),
        "GET",
        f"/v1/tasks/{ID}/events?after=3&limit=7",
        None,
        None,
        {"events": [{"event_id": ID}]},
    ),
    "list_audit": (
        lambda client: client.list_audit(ID),
        "GET",
        f"/v1/tasks/{ID}/audit",
        None,
        None,
        {"entries": [{"audit_no": "1", "at": NOW, "actor": ID, "action": "task.cancel", "details": {}}]},
    ),
    "resolve_task": (
        lambda client: client.resolve_task("key", ID, RESOLVE),
        "POST",
        f"/v1/tasks/{ID}/resolve",
        {"outcome": "SUCCEEDED", "evidence": "ticket", "result": 1},
        "key",
        TASK,
    ),
    "retry_task": (
        lambda client: client.retry_task("key", ID),
        "POST",
        f"/v1/tasks/{ID}/retry",
        None,
        "key",
        {"task": TASK, "created": True},
    ),
    "pause_queue": (
        lambda client: client.pause_queue(QUEUE),
        "POST",
        f"/v1/queues/{QUEUE}/pause",
        None,
        None,
        QUEUE_SHOWN,
    ),
    "resume_queue": (
        lambda client: client.resume_queue(QUEUE),
        "POST",
        f"/v1/queues/{QUEUE}/resume",
        None,
        None,
        QUEUE_SHOWN,
    ),
    "set_queue_limits": (
        lambda client: client.set_queue_limits(QUEUE, QueueLimits(start_limit=5, start_window_ms=1_000)),
        "PUT",
        f"/v1/queues/{QUEUE}/limits",
        {"start_limit": 5, "start_window_ms": 1_000},
        None,
        {**QUEUE_SHOWN, "paused": True, "concurrency_limit": 3},
    ),
    "get_task": (lambda client: client.get_task(ID), "GET", f"/v1/tasks/{ID}", None, None, TASK),
    "cancel_task": (lambda client: client.cancel_task(ID), "POST", f"/v1/tasks/{ID}/cancel", {}, None, TASK),
    "list_queues": (lambda client: client.list_queues(), "GET", "/v1/queues", None, None, {"queues": []}),
    "create_subscription": (
        lambda client: client.create_subscription("key", SUBSCRIBE),
        "POST",
        "/v1/subscriptions",
        {"queue_id": QUEUE, "event_types": ["task.failed"], "window": 64, "attempt_budget": 10},
        "key",
        SUBSCRIPTION,
    ),
    "get_subscription": (
        lambda client: client.get_subscription(ID),
        "GET",
        f"/v1/subscriptions/{ID}",
        None,
        None,
        SUBSCRIPTION,
    ),
    "pause_subscription": (
        lambda client: client.pause_subscription(ID),
        "POST",
        f"/v1/subscriptions/{ID}/pause",
        None,
        None,
        SUBSCRIPTION,
    ),
    "resume_subscription": (
        lambda client: client.resume_subscription(ID),
        "POST",
        f"/v1/subscriptions/{ID}/resume",
        None,
        None,
        SUBSCRIPTION,
    ),
    "list_subscriptions": (
        lambda client: client.list_subscriptions(),
        "GET",
        "/v1/subscriptions",
        None,
        None,
        {"subscriptions": [SUBSCRIPTION]},
    ),
    "list_deliveries": (
        lambda client: client.list_deliveries(ID, after=ID, limit=7),
        "GET",
        f"/v1/subscriptions/{ID}/deliveries?after={ID}&limit=7",
        None,
        None,
        {"deliveries": [DELIVERY], "next": ID},
    ),
    "grant": (
        lambda client: client.grant("key", ID, 3),
        "POST",
        f"/v1/deliveries/{ID}/grant",
        {"attempts": 3},
        "key",
        DELIVERY,
    ),
}


def client_over(answer: Callable[[httpx.Request], httpx.Response]) -> OrbitClient:
    credentials = Credentials(queue_id=QUEUE, token=Secret("token-of-sixteen-characters"))
    return OrbitClient("https://orbit.example", credentials, transport=httpx.MockTransport(answer))


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_is_this_request(name: str) -> None:
    call, method, target, body, key, answer = CALLS[name]
    seen: list[httpx.Request] = []

    def serve(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json=answer)

    async with client_over(serve) as client:
        assert await call(client) is not None
    [request] = seen
    assert (request.method, request.url.raw_path.decode()) == (method, target)
    assert (json.loads(request.content) if request.content else None) == body
    assert request.headers.get("Idempotency-Key") == key


def test_every_call_is_in_the_table() -> None:
    public = {name for name, _ in inspect.getmembers(OrbitClient, inspect.iscoroutinefunction) if name[0] != "_"}
    assert public - {"close", "dial_worker", "open_channel"} == set(CALLS)


async def test_number_texts_of_payloads_travel_as_they_are() -> None:
    def serve(request: httpx.Request) -> httpx.Response:
        assert b'"payload":{"n":1.10}' in request.content
        return httpx.Response(200, content=json.dumps({"task": {**TASK, "payload": 0}, "created": False}))

    async with client_over(serve) as client:
        assert not (await client.submit_task("key", SUBMIT)).created


def test_the_operation_key_is_required_and_positional() -> None:
    for name in ("submit_task", "resolve_task", "retry_task", "create_subscription", "grant"):
        first = list(inspect.signature(getattr(OrbitClient, name)).parameters.values())[1]
        assert (first.name, first.kind, first.default) == (
            "operation_key",
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.empty,
        )


def test_every_call_says_whether_it_may_be_repeated() -> None:
    assert [name for name in CALLS if "Safe to repeat" not in (getattr(OrbitClient, name).__doc__ or "")] == []


@pytest.mark.parametrize("value", ["", "A" * 32, "../tasks", ID + "/cancel", ID + "\n"])
async def test_an_id_that_is_none_is_not_sent(value: str) -> None:
    def serve(_: httpx.Request) -> httpx.Response:
        raise AssertionError("it was sent")

    async with client_over(serve) as client:
        for call in (
            client.get_task,
            client.cancel_task,
            client.list_attempts,
            client.list_events,
            client.list_audit,
            client.pause_queue,
            client.get_subscription,
            client.list_deliveries,
        ):
            with pytest.raises(InvalidRequest):
                await call(value)
        with pytest.raises(InvalidRequest):
            await client.resolve_task("key", value, RESOLVE)
        with pytest.raises(InvalidRequest):
            await client.retry_task("key", value)
        with pytest.raises(InvalidRequest):
            await client.grant("key", value, 1)

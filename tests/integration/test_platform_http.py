"""What the HTTP interface refuses, and in which words; nothing refused may leave a trace."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from orbit.protocol.limits import Limits
from orbit.protocol.values import Secret, new_id
from orbit.server.web.routes import ENDPOINTS
from tests.support.platform import Api, fresh_credentials, running_node
from tests.support.rows import rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orbit.mysql.dsn import DSN
    from tests.support.platform import Node

LIMITS = Limits()


def refusal(answer: httpx.Response) -> tuple[int, str]:
    """Status and code of an error whose shape is right."""
    body = answer.json()
    assert set(body) == {"code", "message", "request_id"}
    assert re.fullmatch("[0-9a-f]{32}", body["request_id"])
    assert answer.headers["X-Request-Id"] == body["request_id"]
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["Cache-Control"] == "no-store"
    return answer.status_code, body["code"]


def raw_task(api: Api, payload: str) -> bytes:
    """A submit with the payload's text put in as it is."""
    return json.dumps(api.task(payload="PAYLOAD")).replace('"PAYLOAD"', payload).encode()


@pytest.mark.parametrize(
    ("what", "payload"),
    [
        ("a duplicate key", '{"a":1,"a":2}'),
        ("a duplicate key after unescaping", '{"a":1,"\\u0061":2}'),
        ("half of a surrogate pair", '"\\ud800"'),
        ("NaN", "NaN"),
        ("29 levels of nesting", "[" * 29 + "]" * 29),
        ("an exponent of 10,000", "1e10000"),
        ("5,001 digits", "1" * 5001),
        ("two values", "1 2"),
        ("a byte that is no UTF-8", '"\udcff"'),
    ],
)
async def test_a_body_that_is_not_strict_json_is_refused(api: Api, node: Node, what: str, payload: str) -> None:
    content = json.dumps(api.task(payload="PAYLOAD")).replace('"PAYLOAD"', payload)

    answer = await api.submit_raw(content.encode(errors="surrogateescape"))

    assert refusal(answer) == (400, "INVALID_ARGUMENT"), what
    assert await rows(node, "SELECT COUNT(*) FROM tasks WHERE queue_id = :id", id=api.queue_id) == [(0,)]
    assert await rows(
        node,
        "SELECT COUNT(*) FROM operations JOIN queues USING (namespace_id) WHERE queue_id = :id",
        id=api.queue_id,
    ) == [(0,)]


@pytest.mark.parametrize(
    "payload",
    ["null", "false", "0", '""', "[]", "[" * 28 + "]" * 28, "1e9999", "-1E-9999", "1" * 5000],
    ids=lambda text: text[:10],
)
async def test_payloads_up_to_the_bounds_are_taken(api: Api, payload: str) -> None:
    answer = await api.submit_raw(raw_task(api, payload))

    assert answer.status_code == 201
    assert f'"payload":{payload}' in answer.text


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"extra": 1}, "body"),
        ({"retry": {"extra": 1}}, "retry"),
        ({"queue_id": "A" * 32}, "queue_id"),
        ({"queue_id": "a" * 32 + "\n"}, "queue_id"),
        ({"handler": ""}, "handler"),
        ({"handler": "h" * 129}, "handler"),
        ({"handler": "text normalize"}, "handler"),
        ({"handler": "text\n"}, "handler"),
        ({"handler_version": "v1\n"}, "handler_version"),
        ({"handler_version": "v" * 65}, "handler_version"),
        ({"payload_version": None}, "payload_version"),
        ({"recovery_safety": "idempotent"}, "recovery_safety"),
        ({"task_timeout_ms": 99}, "task_timeout_ms"),
        ({"task_timeout_ms": 30 * 86_400_000 + 1}, "task_timeout_ms"),
        ({"task_timeout_ms": 1000.0}, "task_timeout_ms"),
        ({"task_timeout_ms": True}, "task_timeout_ms"),
        ({"task_timeout_ms": "1000"}, "task_timeout_ms"),
        ({"latest_start_at": "2030-02-29T00:00:00Z"}, "latest_start_at"),
        ({"latest_start_at": "2030-01-01T00:00:00"}, "latest_start_at"),
        ({"latest_start_at": "2030-01-01T00:00:00Z\n"}, "latest_start_at"),
        ({"latest_start_at": "2030-01-01T00:00:00.1234567Z"}, "latest_start_at"),
        ({"latest_start_at": "2030-01-01T00:00:00+01:00"}, "latest_start_at"),
        ({"retry": {"max_attempts": 0}}, "retry.max_attempts"),
        ({"retry": {"max_attempts": 101}}, "retry.max_attempts"),
        ({"retry": {"initial_delay_ms": 0}}, "retry.initial_delay_ms"),
        ({"retry": {"initial_delay_ms": 2, "max_delay_ms": 1}}, "retry.max_delay_ms"),
        ({"retry": {"max_delay_ms": 86_400_001}}, "retry.max_delay_ms"),
        ({"retry": {"attempt_timeout_ms": 99}}, "retry.attempt_timeout_ms"),
        ({"priority": -1}, "priority"),
        ({"priority": 10}, "priority"),
        ({"concurrency_key": ""}, "concurrency_key"),
        ({"concurrency_key": "a b"}, "concurrency_key"),
        ({"concurrency_key": "a\n"}, "concurrency_key"),
        ({"concurrency_key": "é"}, "concurrency_key"),
        ({"concurrency_key": "k" * 129}, "concurrency_key"),
    ],
    ids=str,
)
async def test_a_wrong_member_is_named_and_its_value_is_not_repeated(
    api: Api, wrong: dict[str, Any], path: str
) -> None:
    answer = await api.submit(**wrong)

    assert refusal(answer) == (400, "INVALID_ARGUMENT")
    assert answer.json()["message"].startswith(f"{path}: ")


async def test_names_and_values_of_the_caller_are_not_repeated(api: Api) -> None:
    for wrong in ({"my-secret-name": 1}, {"recovery_safety": "my-secret-name"}, {"handler": "my-secret-name "}):
        assert "secret" not in (await api.submit(**wrong)).text


@pytest.mark.parametrize("missing", ["queue_id", "handler", "handler_version", "payload_version", "payload"])
async def test_a_missing_member_is_named(api: Api, missing: str) -> None:
    content = api.task()
    del content[missing]

    answer = await api.submit_raw(json.dumps(content).encode())

    assert refusal(answer) == (400, "INVALID_ARGUMENT")
    assert answer.json()["message"] == f"{missing}: is required"


async def test_a_body_that_is_no_object_is_refused(api: Api) -> None:
    for content in (b"[]", b'"a"', b"1", b"null", b""):
        assert refusal(await api.submit_raw(content)) == (400, "INVALID_ARGUMENT"), content


async def head_of_answer(base_url: str, api: Api, content_length: int) -> bytes:
    """Announce a body, send its first byte alone, and read the head of the answer."""
    host, port = base_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = (
        "POST /v1/tasks HTTP/1.1",
        "Host: orbit",
        "Idempotency-Key: a",
        "Content-Type: application/json",
        f"Content-Length: {content_length}",
        f"Authorization: {api.http.headers['Authorization']}",
    )
    writer.write(("\r\n".join(head) + "\r\n\r\n{").encode())
    async with asyncio.timeout(10):
        answer = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return answer


async def test_an_announced_body_that_is_too_large_is_refused_before_it_is_read(node: Node, api: Api) -> None:
    assert (await head_of_answer(node.base_url, api, 524_289)).startswith(b"HTTP/1.1 413 ")


async def test_a_body_that_does_not_arrive_is_not_waited_for(platform_dsn: DSN) -> None:
    credentials = await fresh_credentials(platform_dsn)
    async with (
        running_node(platform_dsn, limits=Limits(read_idle_s=0.2)) as node,
        Api(node.base_url, credentials) as api,
    ):
        assert (await head_of_answer(node.base_url, api, 524_288)).startswith(b"HTTP/1.1 400 ")


async def test_a_chunked_body_that_is_too_large_is_refused(api: Api) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(9):
            yield b" " * (64 * 1024)

    headers = {"Idempotency-Key": "a", "Content-Type": "application/json"}
    answer = await api.http.post("/v1/tasks", content=chunks(), headers=headers)

    assert "Content-Length" not in answer.request.headers
    assert refusal(answer) == (413, "PAYLOAD_TOO_LARGE")


async def test_a_body_of_exactly_the_greatest_size_is_read(api: Api) -> None:
    content = json.dumps(api.task()).encode()
    filled = content + b" " * (LIMITS.request_body_bytes - len(content))

    assert (await api.submit_raw(filled)).status_code == 201
    assert refusal(await api.submit_raw(filled + b" ")) == (413, "PAYLOAD_TOO_LARGE")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "application/json"}, 201),
        ({"Content-Type": "Application/JSON; charset=UTF-8"}, 201),
        ({"Content-Type": 'application/json; charset="utf-8"'}, 201),
        ({"Content-Type": "application/json; charset=latin-1"}, 415),
        ({"Content-Type": "application/json; version=2"}, 415),
        ({"Content-Type": "application/problem+json"}, 415),
        ({"Content-Type": "text/plain"}, 415),
        ({}, 415),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, 415),
    ],
    ids=str,
)
async def test_only_plain_json_is_taken(api: Api, headers: dict[str, str], status: int) -> None:
    content = json.dumps(api.task()).encode()

    answer = await api.http.post("/v1/tasks", content=content, headers={"Idempotency-Key": "a", **headers})

    assert answer.status_code == status
    if status == 415:
        assert refusal(answer) == (415, "UNSUPPORTED_MEDIA_TYPE")


@pytest.mark.parametrize("path", ["/v1/tasks", "/v1/subscriptions", f"/v1/deliveries/{'0' * 32}/grant"])
async def test_an_operation_key_is_required_once_and_visible_ascii(api: Api, path: str) -> None:
    for keys in ([], ["a", "b"], [""], ["a b"], ["a" * 129], ["\xe9"]):
        headers = [(b"Content-Type", b"application/json")]
        headers += [(b"Idempotency-Key", key.encode("latin-1")) for key in keys]
        answer = await api.http.post(path, content=b"{}", headers=headers)
        assert refusal(answer) == (400, "INVALID_ARGUMENT"), keys
        assert "Idempotency-Key" in answer.json()["message"]
    assert (await api.submit("!" + "~" * 127)).status_code == 201


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"Authorization", b"")],
        [(b"Authorization", b"Bearer")],
        [(b"Authorization", f"Bearer {Secret.new().reveal()}".encode())],
        [(b"Authorization", b"Bearer ' OR 1=1 --")],
        [(b"Authorization", b"Bearer \xff")],
        [(b"Authorization", b"Basic dXNlcjpwYXNz")],
        [(b"Authorization", b"Bearer a"), (b"Authorization", b"Bearer b")],
    ],
    ids=["none", "empty", "no token", "unknown", "no token's shape", "not ASCII", "other scheme", "two"],
)
async def test_without_a_valid_token_nothing_is_answered(api: Api, headers: list[tuple[bytes, bytes]]) -> None:
    del api.http.headers["Authorization"]

    for one in ENDPOINTS:
        path = re.sub(r"\{\w+\}", new_id(), one.path)
        answer = await api.http.request(one.method, path, headers=headers)
        assert refusal(answer) == (401, "UNAUTHENTICATED"), one.name
        assert answer.headers["WWW-Authenticate"] == "Bearer"


async def test_a_revoked_token_is_refused_at_once(api: Api, node: Node) -> None:
    assert (await api.http.get("/v1/queues")).status_code == 200

    await rows(node, "UPDATE credentials SET revoked_at = UTC_TIMESTAMP(6) WHERE queue_id = :id", id=api.queue_id)

    assert refusal(await api.http.get("/v1/queues")) == (401, "UNAUTHENTICATED")


async def test_every_operation_asks_for_the_permission_that_its_entry_names(node: Node, platform_dsn: DSN) -> None:
    credentials = await fresh_credentials(platform_dsn)
    async with Api(node.base_url, credentials) as api:
        for one in ENDPOINTS:
            if one.permission is None:
                continue
            others = " ".join(name for name in credentials["permissions"] if name != one.permission)
            await rows(
                node, "UPDATE credentials SET permissions = :names WHERE queue_id = :id", names=others, id=api.queue_id
            )
            answer = await api.http.request(one.method, re.sub(r"\{\w+\}", new_id(), one.path))
            assert refusal(answer) == (403, "PERMISSION_DENIED"), one.name
            assert one.permission in answer.json()["message"]


async def test_bootstrap_gives_the_permissions_asked_for(platform_dsn: DSN) -> None:
    always = ["tasks:submit", "tasks:read", "tasks:cancel"]
    more = {
        "event_access": ["events:read", "events:consume", "events:manage"],
        "worker_access": ["workers:connect", "workers:consume"],
        "queue_access": ["queues:manage"],
        "task_access": ["tasks:manage"],
    }
    everything = dict.fromkeys(more, True)
    for flag, permissions in more.items():
        alone = await fresh_credentials(platform_dsn, **(dict.fromkeys(more, False) | {flag: True}))
        assert alone["permissions"] == always + permissions
    every = await fresh_credentials(platform_dsn, **everything)
    assert every["permissions"] == always + [name for names in more.values() for name in names]


async def test_a_path_is_refused_by_the_rules_of_http(api: Api) -> None:
    assert refusal(await api.http.get("/v1/nothing")) == (404, "NOT_FOUND")
    # No redirect: it would carry the token to another path.
    assert refusal(await api.http.get("/v1/queues/")) == (404, "NOT_FOUND")
    wrong_method = await api.http.delete("/v1/subscriptions")
    assert refusal(wrong_method) == (405, "METHOD_NOT_ALLOWED")
    assert set(wrong_method.headers["Allow"].split(", ")) == {"GET", "HEAD", "POST"}
    assert refusal(await api.http.get("/v1/tasks/ABC")) == (400, "INVALID_ARGUMENT")


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "limit=1.0", "limit=", "after=x", "limit=1&limit=2", "a=1"])
async def test_a_wrong_query_is_refused(api: Api, query: str) -> None:
    subscription_id = (await api.subscribe()).json()["subscription_id"]

    answer = await api.http.get(f"/v1/subscriptions/{subscription_id}/deliveries?{query}")

    assert refusal(answer) == (400, "INVALID_ARGUMENT")


async def test_a_query_where_none_is_known_is_refused(api: Api) -> None:
    assert refusal(await api.http.get("/v1/queues?limit=1")) == (400, "INVALID_ARGUMENT")


async def test_health_needs_no_token_and_says_whether_the_node_works(platform_dsn: DSN) -> None:
    async with running_node(platform_dsn) as node, httpx.AsyncClient(base_url=node.base_url, trust_env=False) as nobody:
        alive, ready = await nobody.get("/livez"), await nobody.get("/readyz")
        node.platform.draining.set()
        draining = await nobody.get("/readyz")

    assert (alive.status_code, alive.json()) == (200, {"status": "ok"})
    assert (ready.status_code, ready.json()) == (200, {"status": "ready"})
    assert (draining.status_code, draining.json()) == (503, {"status": "not ready", "reason": "draining"})


async def test_a_node_whose_sweeper_died_is_not_ready(platform_dsn: DSN) -> None:
    async with running_node(platform_dsn) as node, httpx.AsyncClient(base_url=node.base_url, trust_env=False) as nobody:
        node.app.state.sweeping.cancel()
        await asyncio.wait({node.app.state.sweeping}, timeout=10)

        answer = await nobody.get("/readyz")

    assert (answer.status_code, answer.json()["reason"]) == (503, "the sweeper stopped")


async def test_the_queues_of_a_credential_are_its_own(api: Api, credentials: dict[str, Any]) -> None:
    answer = await api.http.get("/v1/queues")

    [queue] = answer.json()["queues"]
    assert queue == {
        "queue_id": credentials["queue_id"],
        "namespace": credentials["namespace"],
        "environment": "test",
        "name": "work",
        "created_at": queue["created_at"],
        "paused": False,
    }

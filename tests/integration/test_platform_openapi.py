"""The published interface: a valid document, made from the route table, that the server keeps."""

from __future__ import annotations

import asyncio
import re
import sys
from typing import TYPE_CHECKING

import msgspec
from openapi_spec_validator import OpenAPIV31SpecValidator

from orbit.server.web.openapi import document
from orbit.server.web.routes import ENDPOINTS
from tests.support.http_fuzz import Plan, Seen
from tests.support.platform import ROOT

if TYPE_CHECKING:
    from tests.support.platform import Api


async def test_the_document_is_published_valid_and_made_from_the_table(api: Api) -> None:
    del api.http.headers["Authorization"]

    published = (await api.http.get("/openapi.json")).json()

    assert published == document(ENDPOINTS)
    assert published["openapi"] == "3.1.0"
    assert list(OpenAPIV31SpecValidator(published).iter_errors()) == []
    assert {(method.upper(), path) for path, item in published["paths"].items() for method in item} == {
        ("POST", "/v1/tasks"),
        ("GET", "/v1/tasks/{task_id}"),
        ("GET", "/v1/tasks"),
        ("GET", "/v1/tasks/{task_id}/attempts"),
        ("GET", "/v1/tasks/{task_id}/events"),
        ("GET", "/v1/tasks/{task_id}/audit"),
        ("POST", "/v1/tasks/{task_id}/cancel"),
        ("POST", "/v1/tasks/{task_id}/resolve"),
        ("POST", "/v1/tasks/{task_id}/retry"),
        ("POST", "/v1/queues/{queue_id}/pause"),
        ("POST", "/v1/queues/{queue_id}/resume"),
        ("PUT", "/v1/queues/{queue_id}/limits"),
        ("GET", "/v1/queues"),
        ("GET", "/v1/subscriptions"),
        ("POST", "/v1/subscriptions"),
        ("GET", "/v1/subscriptions/{subscription_id}"),
        ("POST", "/v1/subscriptions/{subscription_id}/pause"),
        ("POST", "/v1/subscriptions/{subscription_id}/resume"),
        ("GET", "/v1/subscriptions/{subscription_id}/deliveries"),
        ("POST", "/v1/deliveries/{delivery_id}/grant"),
    }


def test_the_document_says_what_a_submit_may_hold() -> None:
    made = document(ENDPOINTS)
    submit = made["paths"]["/v1/tasks"]["post"]
    task = made["components"]["schemas"]["SubmitTask"]

    assert set(submit["responses"]) == {"200", "201", "400", "401", "403", "404", "409", "413", "415", "500", "503"}
    assert [one["name"] for one in submit["parameters"]] == ["Idempotency-Key"]
    assert task["additionalProperties"] is False
    assert task["required"] == ["queue_id", "handler", "handler_version", "payload_version", "payload"]
    assert task["properties"]["priority"] == {"type": "integer", "minimum": 0, "maximum": 9, "default": 0}


def test_the_page_about_the_interface_lists_every_operation() -> None:
    page = (ROOT / "docs" / "http.md").read_text()
    listed = re.findall(r"^\| `(\w+) (\S+)` \| (.+?) \| (.+?) \|", page, re.MULTILINE)

    assert listed == [
        (
            one.method,
            one.path,
            f"`{one.permission}`" if one.permission else "any credential",
            "yes" if one.keyed else "no",
        )
        for one in ENDPOINTS
    ]


async def test_the_server_keeps_what_its_document_says(api: Api) -> None:
    """Requests made up from the document; resources that exist and do not, bodies that fit it and do not."""
    seen = await fuzzed(api)

    assert {name for name, _ in seen} == {one.name for one in ENDPOINTS}
    for name in ("submitTask", "createSubscription"):
        assert (name, 201) in seen
    for name in (
        "getTask",
        "listTasks",
        "listAttempts",
        "listEvents",
        "listAudit",
        "cancelTask",
        "retryTask",
        "listQueues",
        "pauseQueue",
        "limitQueue",
        "getSubscription",
        "listDeliveries",
    ):
        assert (name, 200) in seen


async def fuzzed(api: Api) -> set[tuple[str, int]]:
    """Let requests for every operation be made up and their answers checked; which was answered with which status."""
    task_id = (await api.submit()).json()["task"]["task_id"]
    subscription_id = (await api.subscribe(event_types=["task.cancelled", "task.submitted"])).json()["subscription_id"]
    await api.submit()
    page = await api.http.get(f"/v1/subscriptions/{subscription_id}/deliveries")
    plan = Plan(
        base_url=str(api.http.base_url),
        authorization=api.http.headers["Authorization"],
        known={
            "queue_id": api.queue_id,
            "task_id": task_id,
            "subscription_id": subscription_id,
            "delivery_id": page.json()["deliveries"][0]["delivery_id"],
        },
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-W", "error", "-m", "tests.support.http_fuzz"),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await process.communicate(msgspec.json.encode(plan))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, err.decode()
    return msgspec.json.decode(out, type=Seen).answers

"""The published interface: a valid document, made from the route table, that the server keeps."""

from __future__ import annotations

import asyncio
import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from orbit.server.web.openapi import document
from orbit.server.web.routes import ENDPOINTS
from tests.support.platform import Api, NodeProcess, fresh_credentials

if TYPE_CHECKING:
    from orbit.mysql.dsn import DSN

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
)
EXAMPLES_PER_OPERATION = 25


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
    page = (Path(__file__).parents[2] / "docs" / "http.md").read_text()
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


async def test_the_server_keeps_what_its_document_says(platform_dsn: DSN) -> None:
    """Requests made up from the document; resources that exist and do not, bodies that fit it and do not.

    The node is a process of its own: Hypothesis owns this one's random numbers.
    """
    credentials = await fresh_credentials(platform_dsn)
    async with NodeProcess(platform_dsn) as node, Api(node.base_url, credentials) as api:
        seen = await fuzz_everything(node.base_url, api)

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


async def fuzz_everything(base_url: str, api: Api) -> set[tuple[str, int]]:
    """Send requests for every operation and check the answers; which operation was answered with which status."""
    task_id = (await api.submit()).json()["task"]["task_id"]
    subscription_id = (await api.subscribe(event_types=["task.cancelled", "task.submitted"])).json()["subscription_id"]
    await api.submit()
    page = await api.http.get(f"/v1/subscriptions/{subscription_id}/deliveries")
    known = {
        "queue_id": api.queue_id,
        "task_id": task_id,
        "subscription_id": subscription_id,
        "delivery_id": page.json()["deliveries"][0]["delivery_id"],
    }
    schema = schemathesis.openapi.from_dict(document(ENDPOINTS))
    seen: set[tuple[str, int]] = set()

    def send(case: schemathesis.Case[Any], session: requests.Session, number: int) -> None:
        if number % 2:
            case.path_parameters = {name: known[name] for name in case.path_parameters or {}}
        if isinstance(case.body, dict) and "queue_id" in case.body and number % 3:
            case.body["queue_id"] = api.queue_id
        case.body = plain_integers(case.body)
        headers = {"Authorization": api.http.headers["Authorization"]}
        answer = case.call_and_validate(base_url=base_url, session=session, headers=headers, checks=list(CHECKS))
        seen.add((case.operation.definition.raw["operationId"], answer.status_code))

    def fuzz(operation: schemathesis.APIOperation[Any, Any, Any, Any], session: requests.Session) -> None:
        number = itertools.count()

        @settings(
            max_examples=EXAMPLES_PER_OPERATION,
            database=None,
            deadline=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def one_operation(case: schemathesis.Case[Any]) -> None:
            send(case, session, next(number))

        one_operation()

    def fuzz_all() -> None:
        with requests.Session() as session:
            session.trust_env = False
            for one in ENDPOINTS:
                fuzz(schema[one.path][one.method], session)

    await asyncio.to_thread(fuzz_all)
    return seen


def plain_integers(value: Any) -> Any:
    """JSON Schema takes 1.0 for an integer; the worker contract, and so this interface, does not."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [plain_integers(one) for one in value]
    if isinstance(value, dict):
        return {name: plain_integers(one) for name, one in value.items()}
    return value

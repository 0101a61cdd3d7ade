"""Sends requests made up from the published document to a node and checks its answers.

    python -m tests.support.http_fuzz

A process of its own, because Hypothesis takes note of every use of `random` in its process while it makes up a value,
and sweepers, pools and the SDK draw their jitter there. It reads a `Plan` as JSON from stdin and writes a `Seen` to
stdout; the first answer that breaks the document ends it with a traceback.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import msgspec
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from orbit.server.web.openapi import document
from orbit.server.web.routes import ENDPOINTS

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
)
EXAMPLES_PER_OPERATION = 25


class Plan(msgspec.Struct, frozen=True):
    """Where to send requests, and the ids of what is there to be found."""

    base_url: str
    authorization: str
    known: dict[str, str]


class Seen(msgspec.Struct, frozen=True):
    """Which operation was answered with which status."""

    answers: set[tuple[str, int]]


def fuzz_everything(plan: Plan) -> Seen:
    """Send requests for every operation: resources that exist and do not, bodies that fit the document and do not."""
    schema = schemathesis.openapi.from_dict(document(ENDPOINTS))
    seen: set[tuple[str, int]] = set()

    def send(case: schemathesis.Case[Any], session: requests.Session, number: int) -> None:
        if number % 2:
            case.path_parameters = {name: plan.known[name] for name in case.path_parameters or {}}
        if isinstance(case.body, dict) and "queue_id" in case.body and number % 3:
            case.body["queue_id"] = plan.known["queue_id"]
        case.body = plain_integers(case.body)
        headers = {"Authorization": plan.authorization}
        answer = case.call_and_validate(base_url=plan.base_url, session=session, headers=headers, checks=list(CHECKS))
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

    with requests.Session() as session:
        session.trust_env = False
        for one in ENDPOINTS:
            fuzz(schema[one.path][one.method], session)
    return Seen(seen)


def plain_integers(value: Any) -> Any:
    """JSON Schema takes 1.0 for an integer; the worker contract, and so this interface, does not."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [plain_integers(one) for one in value]
    if isinstance(value, dict):
        return {name: plain_integers(one) for name, one in value.items()}
    return value


if __name__ == "__main__":
    sys.stdout.buffer.write(
        msgspec.json.encode(fuzz_everything(msgspec.json.decode(sys.stdin.buffer.read(), type=Plan)))
    )

"""Submitting, reading and cancelling tasks over HTTP, on a real database."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from orbit.protocol.event import Event
from orbit.protocol.limits import Limits
from orbit.protocol.values import new_id, parse_time
from tests.support.platform import Api, fresh_credentials
from tests.support.rows import rows

if TYPE_CHECKING:
    from orbit.mysql.dsn import DSN
    from tests.support.platform import Node

LIMITS = Limits()


async def test_a_submitted_task_is_frozen_as_asked_with_the_defaults_filled_in(api: Api) -> None:
    answer = await api.submit()

    assert answer.status_code == 201
    accepted = answer.json()
    assert accepted["created"] is True
    task = accepted["task"]
    created_at = parse_time(task["created_at"], "created_at")
    assert abs(created_at - datetime.now(UTC)) < timedelta(minutes=5)
    assert task == {
        "task_id": task["task_id"],
        "queue_id": api.queue_id,
        "handler": "text.normalize",
        "handler_version": "v1",
        "payload_version": "v1",
        "payload": {"text": "  a  "},
        "recovery_safety": "RECONCILE_ONLY",
        "task_timeout_ms": 3_600_000,
        "retry": {
            "max_attempts": 1,
            "initial_delay_ms": 1_000,
            "max_delay_ms": 60_000,
            "attempt_timeout_ms": 300_000,
        },
        "state": "WAITING",
        "version": "1",
        "attempt_count": 0,
        "created_at": task["created_at"],
        "updated_at": task["created_at"],
        "available_at": task["created_at"],
        "deadline_at": task["deadline_at"],
    }
    assert parse_time(task["deadline_at"], "deadline_at") - created_at == timedelta(hours=1)
    assert (await api.http.get(f"/v1/tasks/{task['task_id']}")).json() == task


async def test_every_field_of_a_submit_comes_back(api: Api) -> None:
    given: dict[str, Any] = {
        "recovery_safety": "IDEMPOTENT",
        "task_timeout_ms": 60_000,
        "latest_start_at": "2030-02-28T23:59:59.120000Z",
        "retry": {"max_attempts": 3, "initial_delay_ms": 500, "max_delay_ms": 2_000, "attempt_timeout_ms": 10_000},
        "priority": 7,
        "concurrency_key": "customer/17",
    }

    task = (await api.submit(**given)).json()["task"]

    assert {name: task[name] for name in given} == given | {"latest_start_at": "2030-02-28T23:59:59.12Z"}


@pytest.mark.parametrize("first_and_last", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"])
async def test_the_ends_of_the_calendar_are_times_too(api: Api, first_and_last: str) -> None:
    answer = await api.submit(latest_start_at=first_and_last)

    assert answer.json()["task"]["latest_start_at"] == first_and_last


async def test_the_payload_keeps_its_exact_text(api: Api, node: Node) -> None:
    payload = r'{ "n" : 18446744073709551617.10, "b":[1e2,-0,1E+05],"a":"é\u00e9\u0000\"" ,"s":"😀\ud83d\ude00"}'
    content = json.dumps(api.task(payload=None)).replace('"payload": null', f'"payload": {payload}')

    answer = await api.submit_raw(content.encode())

    assert answer.status_code == 201
    assert payload in answer.text
    task_id = answer.json()["task"]["task_id"]
    assert payload in (await api.http.get(f"/v1/tasks/{task_id}")).text
    assert await rows(node, "SELECT payload FROM tasks WHERE task_id = :id", id=task_id) == [(payload,)]


async def test_a_payload_of_the_greatest_size_is_taken_and_one_byte_more_is_not(api: Api) -> None:
    room = LIMITS.payload_bytes - 2

    taken = await api.submit(payload="x" * room)
    refused = await api.submit(payload="x" * (room + 1))

    assert taken.status_code == 201
    assert (refused.status_code, refused.json()["code"]) == (400, "INVALID_ARGUMENT")


async def test_the_same_key_and_content_give_the_same_task_as_it_is_now(api: Api) -> None:
    first = await api.submit("order-1")
    task_id = first.json()["task"]["task_id"]
    await api.cancel(task_id)

    again = await api.submit("order-1")

    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["created"] is False
    assert again.json()["task"]["task_id"] == task_id
    assert again.json()["task"]["state"] == "CANCELLED"


@pytest.mark.parametrize(
    "explicit",
    [
        {"recovery_safety": "RECONCILE_ONLY"},
        {"task_timeout_ms": 3_600_000},
        {"priority": 0},
        {"retry": {}},
        {"retry": {"max_attempts": 1, "attempt_timeout_ms": 300_000}},
    ],
    ids=lambda given: next(iter(given)),
)
async def test_an_explicit_default_is_the_same_content(api: Api, explicit: dict[str, Any]) -> None:
    await api.submit("order-1")

    assert (await api.submit("order-1", **explicit)).status_code == 200


async def test_layout_order_and_the_form_of_a_time_are_not_content(api: Api) -> None:
    time = "2030-01-01T00:00:00.500Z"
    await api.submit("order-1", payload={"a": 1, "b": 2}, latest_start_at=time)
    other_layout = json.dumps(
        dict(reversed(api.task(payload={"b": 2, "a": 1}, latest_start_at="2030-01-01T00:00:00.5Z").items())), indent=3
    )

    assert (await api.submit_raw(other_layout.encode(), "order-1")).status_code == 200


@pytest.mark.parametrize(
    "changed",
    [
        {"payload": {"text": "  b  "}},
        {"payload": {"text": "  a "}},
        {"handler": "text.normalise"},
        {"handler_version": "v2"},
        {"payload_version": "v2"},
        {"recovery_safety": "IDEMPOTENT"},
        {"task_timeout_ms": 3_600_001},
        {"latest_start_at": "2030-01-01T00:00:00Z"},
        {"retry": {"max_attempts": 2}},
        {"retry": {"initial_delay_ms": 1_001}},
        {"retry": {"max_delay_ms": 60_001}},
        {"retry": {"attempt_timeout_ms": 300_001}},
        {"priority": 1},
        {"concurrency_key": "a"},
    ],
    ids=str,
)
async def test_the_same_key_with_other_content_is_a_conflict_and_changes_nothing(
    api: Api, node: Node, changed: dict[str, Any]
) -> None:
    first = (await api.submit("order-1")).json()["task"]

    answer = await api.submit("order-1", **changed)

    assert (answer.status_code, answer.json()["code"]) == (409, "IDEMPOTENCY_CONFLICT")
    assert (await api.http.get(f"/v1/tasks/{first['task_id']}")).json() == first
    assert await rows(node, "SELECT COUNT(*) FROM tasks WHERE queue_id = :id", id=api.queue_id) == [(1,)]


@pytest.mark.parametrize(("one", "other"), [("1.0", "1.00"), ("1e2", "100"), ("0", "-0")])
async def test_numbers_are_compared_by_their_text(api: Api, one: str, other: str) -> None:
    await api.submit_raw(json.dumps(api.task(payload="N")).replace('"N"', one).encode(), "order-1")

    answer = await api.submit_raw(json.dumps(api.task(payload="N")).replace('"N"', other).encode(), "order-1")

    assert answer.status_code == 409


async def test_fifty_equal_submits_at_once_make_one_task(api: Api, node: Node) -> None:
    answers = await asyncio.gather(*(api.submit("order-1") for _ in range(50)))

    assert sorted(answer.status_code for answer in answers) == [200] * 49 + [201]
    assert len({answer.json()["task"]["task_id"] for answer in answers}) == 1
    for table in ("tasks", "events"):
        assert await rows(node, f"SELECT COUNT(*) FROM {table} WHERE queue_id = :id", id=api.queue_id) == [(1,)]


async def test_submits_with_one_key_and_two_contents_at_once_make_one_task(api: Api, node: Node) -> None:
    answers = await asyncio.gather(*(api.submit("order-1", priority=number % 2) for number in range(20)))

    statuses = sorted(answer.status_code for answer in answers)
    assert statuses == [200] * 9 + [201] + [409] * 10
    assert await rows(node, "SELECT COUNT(*) FROM tasks WHERE queue_id = :id", id=api.queue_id) == [(1,)]


async def test_a_key_counts_for_one_namespace_and_application(
    api: Api, node: Node, credentials: dict[str, Any], platform_dsn: DSN
) -> None:
    mine = (await api.submit("order-1")).json()["task"]["task_id"]
    names = {"namespace": credentials["namespace"], "application": credentials["application"]}
    for kept, name in names.items():
        other = await fresh_credentials(platform_dsn, **{kept: name})
        async with Api(node.base_url, other) as stranger:
            answer = await stranger.submit("order-1")
            assert answer.status_code == 201
            assert answer.json()["task"]["task_id"] != mine


async def test_a_key_is_compared_byte_for_byte(api: Api) -> None:
    keys = ("order-a", "order-A", "order-a.", "Order-a")

    assert [(await api.submit(key)).status_code for key in keys] == [201] * 4


async def test_a_cancelled_task_has_a_second_version_and_answers_again(api: Api) -> None:
    task = (await api.submit()).json()["task"]

    first = await api.cancel(task["task_id"])
    again = await api.cancel(task["task_id"])
    without_a_body = await api.http.post(f"/v1/tasks/{task['task_id']}/cancel")

    assert [answer.status_code for answer in (first, again, without_a_body)] == [200] * 3
    cancelled = first.json()
    assert again.json() == without_a_body.json() == cancelled
    at = cancelled["updated_at"]
    del task["available_at"]
    assert cancelled == task | {
        "state": "CANCELLED",
        "version": "2",
        "updated_at": at,
        "cancel_requested_at": at,
        "completed_at": at,
    }
    assert parse_time(at, "updated_at") >= parse_time(task["created_at"], "created_at")


async def test_twenty_cancellations_at_once_make_one_version(api: Api, node: Node) -> None:
    task_id = (await api.submit()).json()["task"]["task_id"]

    answers = await asyncio.gather(*(api.cancel(task_id) for _ in range(20)))

    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.text for answer in answers}) == 1
    assert await rows(node, "SELECT MAX(task_version), COUNT(*) FROM events WHERE task_id = :id", id=task_id) == [
        (2, 2)
    ]


@pytest.mark.parametrize("state", ["SUCCEEDED", "FAILED"])
async def test_a_task_that_has_ended_is_not_cancelled(api: Api, node: Node, state: str) -> None:
    task_id = (await api.submit()).json()["task"]["task_id"]
    await rows(node, "UPDATE tasks SET state = :state WHERE task_id = :id", state=state, id=task_id)

    answer = await api.cancel(task_id)

    assert (answer.status_code, answer.json()["code"]) == (409, "STATE_CONFLICT")
    assert await rows(node, "SELECT state, version FROM tasks WHERE task_id = :id", id=task_id) == [(state, 1)]


async def test_the_events_of_a_task_are_frozen_canonical_and_valid(api: Api, node: Node) -> None:
    task = (await api.submit()).json()["task"]
    cancelled = (await api.cancel(task["task_id"])).json()

    found = await rows(
        node,
        "SELECT event_id, event_type, task_version, event FROM events WHERE task_id = :id ORDER BY task_version",
        id=task["task_id"],
    )

    expected = [
        ("task.submitted", "WAITING", task["created_at"]),
        ("task.cancelled", "CANCELLED", cancelled["updated_at"]),
    ]
    assert len(found) == 2
    for number, (row, (event_type, state, at)) in enumerate(zip(found, expected, strict=True), 1):
        event_id, stored_type, version, text = row
        assert (stored_type, version) == (event_type, number)
        assert text == (
            f'{{"event_id":"{event_id}","event_type":"{event_type}","occurred_at":"{at}","queue_id":"{api.queue_id}",'
            f'"state":"{state}","task_id":"{task["task_id"]}","task_version":"{number}"}}'
        )
        assert Event.parse(text.encode()).text == text


@pytest.mark.parametrize("method_and_path", [("GET", "/v1/tasks/{}"), ("POST", "/v1/tasks/{}/cancel")])
async def test_tasks_of_others_do_not_exist(
    api: Api, node: Node, credentials: dict[str, Any], platform_dsn: DSN, method_and_path: tuple[str, str]
) -> None:
    method, path = method_and_path
    task_id = (await api.submit()).json()["task"]["task_id"]
    strangers = [
        await fresh_credentials(platform_dsn),
        await fresh_credentials(platform_dsn, namespace=credentials["namespace"]),
        await fresh_credentials(platform_dsn, application=credentials["application"]),
    ]
    for one in strangers:
        async with Api(node.base_url, one) as stranger:
            theirs = await stranger.http.request(method, path.format(task_id))
            nobodys = await stranger.http.request(method, path.format(new_id()))
        assert theirs.status_code == nobodys.status_code == 404
        assert {**theirs.json(), "request_id": ""} == {**nobodys.json(), "request_id": ""}
    assert await rows(node, "SELECT version FROM tasks WHERE task_id = :id", id=task_id) == [(1,)]


async def test_another_queue_of_the_namespace_is_refused_and_a_queue_elsewhere_does_not_exist(
    api: Api, node: Node, credentials: dict[str, Any], platform_dsn: DSN
) -> None:
    names = {"namespace": credentials["namespace"], "application": credentials["application"]}
    next_door = await fresh_credentials(platform_dsn, **names, queue="other")
    elsewhere = await fresh_credentials(platform_dsn)
    task_id = (await api.submit()).json()["task"]["task_id"]

    named = await api.submit(queue_id=next_door["queue_id"])
    unknown = await api.submit(queue_id=elsewhere["queue_id"])
    async with Api(node.base_url, next_door) as neighbour:
        own_task = await neighbour.http.get(f"/v1/tasks/{task_id}")

    assert (named.status_code, named.json()["code"]) == (403, "PERMISSION_DENIED")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "NOT_FOUND")
    assert (own_task.status_code, own_task.json()["code"]) == (403, "PERMISSION_DENIED")

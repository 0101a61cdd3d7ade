"""A person's recovery over HTTP: tasks under review are listed, resolved, done again, and their past is read."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from orbit.mysql.statement import Statement
from orbit.protocol.attempt_v1 import Disposition, Outcome
from orbit.protocol.event import Event
from orbit.protocol.values import new_id, parse_time
from orbit.server.services import listing
from tests.support.platform import Api, NodeProcess, fresh_credentials
from tests.support.reviews import Floor, resolve, retry
from tests.support.rows import rows
from tests.support.worker_client import report

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orbit.mysql.dsn import DSN
    from orbit.mysql.transaction import Transaction
    from tests.support.platform import Node


@pytest.fixture
async def floor(node: Node, api: Api) -> AsyncIterator[Floor]:
    """A queue and one worker."""
    async with Floor.open(node.base_url, api) as one:
        yield one


RESOLUTIONS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("SUCCEEDED", {"result": {"n": 1}}, {"result": {"n": 1}}),
    ("SUCCEEDED", {}, {}),
    ("FAILED", {"error_code": "NEVER_HAPPENED"}, {"error_code": "NEVER_HAPPENED"}),
    ("CANCELLED", {}, {}),
    ("CANCELLED", {"error_code": "NOT_WANTED"}, {"error_code": "NOT_WANTED"}),
]


@pytest.mark.parametrize(("outcome", "given", "shown"), RESOLUTIONS)
async def test_a_resolution_ends_the_review_with_a_version_an_event_and_an_audit(
    floor: Floor, node: Node, outcome: str, given: dict[str, Any], shown: dict[str, Any]
) -> None:
    one = await floor.under_review()
    task_id = one.task.task_id
    before = await floor.task(task_id)

    answer = await resolve(floor.api, task_id, outcome, evidence={"ticket": "4711", "seen": True}, **given)

    assert answer.status_code == 200
    task = answer.json()
    at = task["updated_at"]
    expected = {name: value for name, value in before.items() if name not in {"effect_uncertain", "error_code"}}
    assert task == expected | {"state": outcome, "version": "5", "updated_at": at, "completed_at": at} | shown
    assert task == await floor.task(task_id)
    last = (await floor.events(task_id))[-1]
    assert (
        last
        == {
            "event_id": last["event_id"],
            "event_type": f"task.{outcome.lower()}",
            "queue_id": floor.api.queue_id,
            "task_id": task_id,
            "task_version": "5",
            "state": outcome,
            "occurred_at": at,
        }
        | shown
    )
    Event.parse(json.dumps(last).encode())
    [(credential_id,)] = await rows(
        node, "SELECT credential_id FROM credentials WHERE queue_id = :id", id=floor.api.queue_id
    )
    [entry] = await floor.audit(task_id)
    assert (entry["actor"], entry["action"]) == (credential_id, "task.resolve")
    assert entry["evidence"] == {"ticket": "4711", "seen": True}
    assert entry["details"] == {"outcome": outcome, "version": "5"} | {
        name: value for name, value in shown.items() if name == "error_code"
    }


async def test_the_result_and_the_evidence_keep_their_number_text(floor: Floor) -> None:
    one = await floor.under_review()
    content = b'{"outcome":"SUCCEEDED","evidence":{"n":18446744073709551617.10},"result":{"n":1.10}}'
    headers = {"Idempotency-Key": new_id(), "Content-Type": "application/json"}

    await floor.api.http.post(f"/v1/tasks/{one.task.task_id}/resolve", content=content, headers=headers)

    assert '"result":{"n":1.10}' in (await floor.api.http.get(f"/v1/tasks/{one.task.task_id}")).text
    audit = await floor.api.http.get(f"/v1/tasks/{one.task.task_id}/audit")
    assert '"evidence":{"n":18446744073709551617.10}' in audit.text


async def test_the_same_key_settles_the_same_resolution_and_no_other(floor: Floor) -> None:
    one = await floor.under_review()
    task_id = one.task.task_id
    first = await resolve(floor.api, task_id, "SUCCEEDED", "key-1", result={"a": 1, "b": 2})

    again = await resolve(floor.api, task_id, "SUCCEEDED", "key-1", result={"b": 2, "a": 1})
    others = [
        await resolve(floor.api, task_id, "FAILED", "key-1", error_code="X"),
        await resolve(floor.api, task_id, "SUCCEEDED", "key-1", result={"a": 1, "b": 3}),
        await resolve(floor.api, task_id, "SUCCEEDED", "key-1", result={"a": 1, "b": 2}, evidence="another"),
        await resolve(
            floor.api, (await floor.under_review()).task.task_id, "SUCCEEDED", "key-1", result={"a": 1, "b": 2}
        ),
    ]

    assert (again.status_code, again.json()) == (200, first.json())
    assert {(one.status_code, one.json()["code"]) for one in others} == {(409, "IDEMPOTENCY_CONFLICT")}
    assert len(await floor.audit(task_id)) == 1


async def test_a_task_is_resolved_once(floor: Floor) -> None:
    task_id = (await floor.under_review()).task.task_id
    await resolve(floor.api, task_id, "CANCELLED")

    again = await resolve(floor.api, task_id, "CANCELLED")

    assert (again.status_code, again.json()["code"]) == (409, "STATE_CONFLICT")
    assert len(await floor.audit(task_id)) == 1


@pytest.mark.parametrize("stage", ["waiting_uncertain", "leased", "running"])
async def test_what_the_platform_is_at_is_neither_resolved_nor_retried(floor: Floor, stage: str) -> None:
    made = await getattr(floor, stage)()
    task_id = made if isinstance(made, str) else made.task.task_id
    before = await floor.task(task_id)

    answers = [await resolve(floor.api, task_id, "SUCCEEDED"), await retry(floor.api, task_id)]

    assert {(one.status_code, one.json()["code"]) for one in answers} == {(409, "STATE_CONFLICT")}
    assert await floor.task(task_id) == before
    assert await floor.audit(task_id) == []


REFUSED = [
    ({"outcome": "SUCCEEDED"}, "evidence"),
    ({"outcome": "UNKNOWN", "evidence": "x"}, "outcome"),
    ({"outcome": "FAILED", "evidence": "x"}, "error_code"),
    ({"outcome": "FAILED", "evidence": "x", "error_code": "not a code"}, "error_code"),
    ({"outcome": "SUCCEEDED", "evidence": ""}, "evidence"),
    ({"outcome": "SUCCEEDED", "evidence": "x" * 64 * 1024}, "evidence"),
    ({"outcome": "SUCCEEDED", "evidence": "x", "result": None}, "result"),
    ({"outcome": "SUCCEEDED", "evidence": "x", "result": "x" * 256 * 1024}, "result"),
    ({"outcome": "CANCELLED", "evidence": "x", "result": 1}, "result"),
]


@pytest.mark.parametrize(("content", "named"), REFUSED)
async def test_a_resolution_against_the_rules_is_refused_and_leaves_the_key_free(
    floor: Floor, content: dict[str, Any], named: str
) -> None:
    task_id = (await floor.under_review()).task.task_id

    answer = await floor.api.http.post(
        f"/v1/tasks/{task_id}/resolve", json=content, headers={"Idempotency-Key": "the-key"}
    )

    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_ARGUMENT")
    assert named in answer.json()["message"]
    assert (await resolve(floor.api, task_id, "CANCELLED", "the-key")).status_code == 200


async def test_a_refused_resolution_leaves_no_receipt(floor: Floor) -> None:
    """A key whose operation was refused may be used once the operation is possible."""
    task_id = await floor.submitted()
    refused = await resolve(floor.api, task_id, "CANCELLED", "the-key")
    one = await floor.assigned(task_id)
    await floor.worker.start(one.attempt)
    await floor.worker.finish(report(one.attempt, Outcome.UNKNOWN))

    assert refused.status_code == 409
    assert (await resolve(floor.api, task_id, "CANCELLED", "the-key")).json()["state"] == "CANCELLED"


async def test_a_report_that_comes_after_the_resolution_is_evidence_only(floor: Floor) -> None:
    """The attempt ended before the review began: whatever its worker still says changes nothing."""
    one = await floor.under_review()
    resolved = (await resolve(floor.api, one.task.task_id, "FAILED", error_code="NEVER_HAPPENED")).json()

    late = await floor.worker.finish(report(one.attempt, result='{"n":1}'))

    assert late.disposition is Disposition.EVIDENCE_ONLY
    assert await floor.task(one.task.task_id) == resolved
    [attempt] = await floor.attempts(one.task.task_id)
    assert [(one["outcome"], one["result"]) for one in attempt["evidence"]] == [("SUCCEEDED", {"n": 1})]


async def test_a_retry_is_a_new_task_with_the_same_content_and_a_whole_time_before_it(floor: Floor) -> None:
    given: dict[str, Any] = {
        "payload": {"text": "  a  ", "n": 1},
        "task_timeout_ms": 3_600_000,
        "latest_start_at": "2099-01-01T00:00:00Z",
        "retry": {"max_attempts": 1, "initial_delay_ms": 500, "max_delay_ms": 2_000, "attempt_timeout_ms": 10_000},
        "priority": 7,
    }
    old_id = (await floor.under_review(**given)).task.task_id
    old = await floor.task(old_id)

    answer = await retry(floor.api, old_id)

    assert answer.status_code == 201
    accepted = answer.json()
    assert accepted["created"] is True
    new = accepted["task"]
    changed = {"task_id", "created_at", "updated_at", "deadline_at", "available_at", "latest_start_at"}
    assert {name: value for name, value in new.items() if name not in changed} == {
        name: old[name]
        for name in old.keys() - changed - {"state", "version", "attempt_count", "effect_uncertain", "error_code"}
    } | {"state": "WAITING", "version": "1", "attempt_count": 0, "retry_of": old_id}
    apart = parse_time(new["created_at"], "new") - parse_time(old["created_at"], "old")
    assert apart > timedelta(0)
    for name in ("deadline_at", "latest_start_at"):
        assert parse_time(new[name], "new") - parse_time(old[name], "old") == apart
    assert await floor.task(old_id) == old
    # It is dispatched, says where it comes from, and ends by itself.
    one = await floor.assigned(new["task_id"])
    assert one.task.retry_of == old_id
    await floor.worker.start(one.attempt)
    await floor.worker.finish(report(one.attempt))
    assert (await floor.task(new["task_id"]))["state"] == "SUCCEEDED"
    assert await floor.task(old_id) == old
    [entry] = await floor.audit(old_id)
    assert (entry["action"], entry["details"]) == ("task.retry", {"new_task_id": new["task_id"], "was": "NEEDS_REVIEW"})
    assert (await floor.events(new["task_id"]))[0]["event_type"] == "task.submitted"


async def test_a_retry_is_done_once_for_its_key(floor: Floor) -> None:
    old_id, other_id = [(await floor.under_review()).task.task_id for _ in range(2)]

    answers = await asyncio.gather(*(retry(floor.api, old_id, "again") for _ in range(8)))
    another = await retry(floor.api, old_id, "once-more")
    other_task = await retry(floor.api, other_id, "again")

    assert sorted(one.status_code for one in answers) == [200] * 7 + [201]
    assert len({one.json()["task"]["task_id"] for one in answers}) == 1
    assert another.json()["task"]["task_id"] != answers[0].json()["task"]["task_id"]
    assert (other_task.status_code, other_task.json()["code"]) == (409, "IDEMPOTENCY_CONFLICT")
    assert len(await floor.audit(old_id)) == 2


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.SUCCEEDED])
async def test_what_failed_may_be_done_again_and_what_succeeded_not(floor: Floor, outcome: Outcome) -> None:
    one = await floor.running()
    await floor.worker.finish(report(one.attempt, outcome))

    answer = await retry(floor.api, one.task.task_id)

    assert answer.status_code == (201 if outcome is Outcome.FAILED else 409)


async def test_a_retried_task_under_review_can_still_be_resolved(floor: Floor) -> None:
    old_id = (await floor.under_review()).task.task_id
    await retry(floor.api, old_id)

    assert (await resolve(floor.api, old_id, "FAILED", error_code="DONE_AGAIN")).json()["state"] == "FAILED"
    assert [entry["action"] for entry in await floor.audit(old_id)] == ["task.retry", "task.resolve"]


async def test_reviews_are_listed_by_when_they_began_and_worked_off_page_by_page(floor: Floor) -> None:
    ids = [(await floor.under_review()).task.task_id for _ in range(5)]
    await floor.submitted()

    seen: list[str] = []
    query: dict[str, Any] = {"state": "NEEDS_REVIEW", "limit": 2}
    while True:
        page = (await floor.api.http.get("/v1/tasks", params=query)).json()
        for task in page["tasks"]:
            seen.append(task["task_id"])
            # The cursor stays good when the task that it names has moved on.
            await resolve(floor.api, task["task_id"], "CANCELLED")
        if "next" not in page:
            break
        query["after"] = page["next"]

    assert seen == ids
    assert (await floor.api.http.get("/v1/tasks", params={"state": "NEEDS_REVIEW"})).json() == {"tasks": []}
    cancelled = (await floor.api.http.get("/v1/tasks", params={"state": "CANCELLED"})).json()["tasks"]
    assert [task["task_id"] for task in cancelled] == ids


async def test_a_summary_has_what_a_list_needs_and_neither_payload_nor_result(floor: Floor) -> None:
    one = await floor.under_review(priority=3)

    [summary] = (await floor.api.http.get("/v1/tasks", params={"state": "NEEDS_REVIEW"})).json()["tasks"]

    task = await floor.task(one.task.task_id)
    same = summary.keys() - {"max_attempts"}
    assert {name: summary[name] for name in same} == {name: task[name] for name in same}
    assert summary.keys() == {
        *("task_id", "queue_id", "handler", "handler_version", "payload_version", "recovery_safety", "state"),
        *("version", "attempt_count", "max_attempts", "created_at", "updated_at", "deadline_at", "priority"),
        *("effect_uncertain", "error_code"),
    }


@pytest.mark.parametrize(
    "query",
    ["", "state=", "state=REVIEW", "state=WAITING&after=x", "state=WAITING&after=" + "f" * 48, "state=WAITING&limit=0"],
)
async def test_a_list_asks_for_a_state_and_a_place_that_it_gave(api: Api, query: str) -> None:
    answer = await api.http.get(f"/v1/tasks?{query}")

    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_ARGUMENT")


async def test_a_list_shows_the_tasks_of_ones_own_application_and_queue_only(
    floor: Floor, node: Node, platform_dsn: DSN, credentials: dict[str, Any]
) -> None:
    one = await floor.under_review()
    namespace = credentials["namespace"]
    others = [
        await fresh_credentials(platform_dsn, namespace=namespace),
        await fresh_credentials(platform_dsn, namespace=namespace, application=credentials["application"], queue="b"),
    ]

    for other in others:
        async with Api(node.base_url, other) as stranger:
            assert (await stranger.http.get("/v1/tasks", params={"state": "NEEDS_REVIEW"})).json() == {"tasks": []}
            expected = {404} if other is others[0] else {403}
            answers = [
                await resolve(stranger, one.task.task_id, "CANCELLED"),
                await retry(stranger, one.task.task_id),
                await stranger.http.get(f"/v1/tasks/{one.task.task_id}/events"),
                await stranger.http.get(f"/v1/tasks/{one.task.task_id}/audit"),
            ]
            assert {answer.status_code for answer in answers} == expected


async def test_events_and_audit_are_read_in_pages(floor: Floor) -> None:
    one = await floor.under_review()
    task_id = one.task.task_id
    await floor.api.cancel(task_id)
    await retry(floor.api, task_id)
    await resolve(floor.api, task_id, "CANCELLED")

    events, entries = [
        await paged(floor.api, f"/v1/tasks/{task_id}/{kind}", member)
        for kind, member in (("events", "events"), ("audit", "entries"))
    ]

    assert [event["task_version"] for event in events] == ["1", "2", "3", "4", "5"]
    assert events == await floor.events(task_id)
    assert [entry["action"] for entry in entries] == ["task.cancel", "task.retry", "task.resolve"]


async def paged(api: Api, path: str, member: str) -> list[dict[str, Any]]:
    """All entries of a list, read two at a time."""
    found: list[dict[str, Any]] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        page = (await api.http.get(path, params=query)).json()
        assert len(page[member]) <= 2
        found += page[member]
        if "next" not in page:
            return found
        query["after"] = page["next"]


async def test_the_events_are_the_texts_that_consumers_get(floor: Floor, node: Node) -> None:
    one = await floor.running()
    await floor.worker.finish(report(one.attempt, result='{"n":18446744073709551617.10}'))

    answer = await floor.api.http.get(f"/v1/tasks/{one.task.task_id}/events")

    texts = await rows(node, "SELECT event FROM events WHERE task_id = :id ORDER BY task_version", id=one.task.task_id)
    assert answer.text == '{"events":[' + ",".join(text for (text,) in texts) + "]}"


async def test_listing_reads_one_range_of_one_index_and_sorts_nothing(node: Node, floor: Floor) -> None:
    for _ in range(3):
        await floor.under_review()
    parameters: dict[str, Any] = {
        "queue_id": floor.api.queue_id,
        "application_id": "a" * 32,
        "state": "NEEDS_REVIEW",
        "at": "2026-01-01",
        "task_id": "",
        "page": 2,
    }

    statement = Statement("EXPLAIN FORMAT=TREE " + listing.LIST.text, listing.LIST.names, listing.LIST.constants)

    async def explain(tx: Transaction) -> list[tuple[Any, ...]]:
        return await tx.fetch(statement, parameters)

    [(plan,)] = await node.platform.pool.read(explain, budget_s=10.0)
    assert "Index range scan on tasks using ix_tasks_listed" in plan
    assert "Sort" not in plan


async def test_no_log_has_the_evidence_or_the_result(platform_dsn: DSN) -> None:
    credentials = await fresh_credentials(platform_dsn)
    async with (
        NodeProcess(platform_dsn) as process,
        Api(process.base_url, credentials) as api,
        Floor.open(process.base_url, api) as floor,
    ):
        task_id = (await floor.under_review()).task.task_id
        for key in ("one", "one", "two"):
            await resolve(api, task_id, "SUCCEEDED", key, evidence="wholly-secret-proof", result="wholly-secret-result")
        await process.stop()

    log = "".join(process.log)
    assert log.count("resolveTask") == 3
    assert "wholly-secret" not in log

"""Cancelling tasks that a worker has or had: on a real database, over real sockets."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from orbit.protocol.attempt_v1 import AttemptState, Disposition, Outcome
from orbit.server.services import expiry
from orbit.server.wake import instance_key, queue_key, subscription_key
from tests.support.platform import Api, running_node
from tests.support.reviews import AGAIN_AT_ONCE, Floor, resolve, retry
from tests.support.rows import rows
from tests.support.wire_client import Refusal
from tests.support.worker_client import WorkerClient, registration, report

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import httpx

    from orbit.mysql.dsn import DSN
    from tests.support.platform import Node


@pytest.fixture
async def floor(node: Node, api: Api) -> AsyncIterator[Floor]:
    """A queue and one worker."""
    async with Floor.open(node.base_url, api) as one:
        yield one


async def cancel(floor: Floor, task_id: str) -> dict[str, Any]:
    """Cancel; the task that was answered."""
    answer = await floor.api.cancel(task_id)
    assert answer.status_code == 200, answer.text
    task: dict[str, Any] = answer.json()
    assert task == await floor.task(task_id)
    return task


async def end_lease(node: Node, task_id: str) -> None:
    """Let the newest attempt's lease be over, and have a sweeper see it."""
    await rows(
        node,
        "UPDATE attempts SET lease_until = UTC_TIMESTAMP(6) WHERE task_id = :id AND state <> 'ENDED'",
        id=task_id,
    )
    await expiry.end_leases(node.platform)


async def test_a_claimed_task_is_cancelled_at_once_and_its_worker_is_told(floor: Floor) -> None:
    one = await floor.leased()

    task = await cancel(floor, one.task.task_id)
    told = await floor.worker.cancellation()

    assert (task["state"], task["version"], task["attempt_count"]) == ("CANCELLED", "3", 1)
    assert task["cancel_requested_at"] == task["completed_at"] == task["updated_at"]
    assert told.identity == one.attempt.identity
    [attempt] = await floor.attempts(one.task.task_id)
    assert (attempt["state"], attempt["outcome"], attempt["error_code"]) == (
        "ENDED",
        "UNSTARTED",
        "CANCEL_REQUESTED",
    )
    assert "lease_until" not in attempt
    lease = await floor.worker.resume(one.attempt)
    assert (lease.state, lease.active) == (AttemptState.ENDED, False)
    with pytest.raises(Refusal, match="STATE_CONFLICT"):
        await floor.worker.start(one.attempt)
    late = await floor.worker.finish(report(one.attempt))
    assert late.disposition is Disposition.EVIDENCE_ONLY
    assert await floor.task(one.task.task_id) == task
    last = (await floor.events(one.task.task_id))[-1]
    assert (last["event_type"], last["attempt_id"]) == ("task.cancelled", one.attempt.attempt_id)


async def test_a_worker_is_told_of_each_cancellation_once(floor: Floor, node: Node) -> None:
    one, two = await floor.leased(), await floor.running()
    await cancel(floor, one.task.task_id)
    await cancel(floor, two.task.task_id)
    told = {(await floor.worker.cancellation()).attempt_id for _ in range(2)}
    # Whatever wakes the session makes it look again.
    for _ in range(3):
        await floor.leased()

    assert told == {one.attempt.attempt_id, two.attempt.attempt_id}
    assert floor.worker.cancellations.empty()


async def test_a_worker_that_did_not_ask_is_not_told(node: Node, api: Api) -> None:
    async with Floor.open(node.base_url, api, cancellation_notifications=False) as floor:
        one, two = await floor.leased(), await floor.running()
        await cancel(floor, one.task.task_id)
        await cancel(floor, two.task.task_id)
        await floor.leased()

        assert floor.worker.cancellations.empty()
        # What it asks about its attempts tells it all the same.
        renewed = await floor.worker.renew(two.attempt)
        assert renewed.lease.cancel_requested_at is not None


async def test_cancelling_frees_the_permit_of_a_claimed_tasks_key(node: Node, api: Api) -> None:
    async with Floor.open(node.base_url, api, concurrency_keys=True) as floor:
        one = await floor.leased(concurrency_key="customer/17")
        next_id = await floor.submitted(concurrency_key="customer/17")

        await cancel(floor, one.task.task_id)
        two = await floor.assigned(next_id)

    assert one.task.concurrency_token is not None
    assert two.task.concurrency_token == one.task.concurrency_token + 1


async def test_an_intent_on_a_running_task_is_stored_and_is_no_change_of_state(floor: Floor) -> None:
    one = await floor.running()
    before = await floor.task(one.task.task_id)

    task = await cancel(floor, one.task.task_id)
    again = await cancel(floor, one.task.task_id)
    told = await floor.worker.cancellation()

    assert task == before | {"cancel_requested_at": task["cancel_requested_at"]}
    assert again == task
    assert told.identity == one.attempt.identity
    assert [event["event_type"] for event in await floor.events(one.task.task_id)] == [
        "task.submitted",
        "task.leased",
        "task.started",
    ]
    lease = await floor.worker.resume(one.attempt)
    assert (lease.state, lease.active) == (AttemptState.RUNNING, True)
    assert lease.cancel_requested_at == told.cancel_requested_at
    [entry] = await floor.audit(one.task.task_id)
    assert (entry["action"], entry["details"]) == (
        "task.cancel",
        {"was": "RUNNING", "state": "RUNNING", "version": "3"},
    )


# What the worker says after the intent, what the task was declared, and what that makes of it. By hand, from the seed.
AFTER_INTENT = [
    (Outcome.CANCELLED, "RECONCILE_ONLY", False, "CANCELLED", False),
    (Outcome.CANCELLED, "IDEMPOTENT", False, "CANCELLED", False),
    (Outcome.SUCCEEDED, "RECONCILE_ONLY", False, "SUCCEEDED", False),
    (Outcome.FAILED, "RECONCILE_ONLY", False, "FAILED", False),
    (Outcome.FAILED, "IDEMPOTENT", True, "FAILED", False),
    (Outcome.UNKNOWN, "RECONCILE_ONLY", False, "NEEDS_REVIEW", True),
    (Outcome.UNKNOWN, "IDEMPOTENT", False, "NEEDS_REVIEW", True),
]


@pytest.mark.parametrize(("outcome", "safety", "retryable", "state", "uncertain"), AFTER_INTENT)
async def test_after_the_intent_the_workers_word_decides_and_nothing_is_tried_again(
    floor: Floor, outcome: Outcome, safety: str, retryable: bool, state: str, uncertain: bool
) -> None:
    one = await floor.running(recovery_safety=safety, retry=AGAIN_AT_ONCE)
    await cancel(floor, one.task.task_id)

    result = await floor.worker.finish(report(one.attempt, outcome, retryable=retryable))

    assert (result.disposition, result.receipt.task_state) == (Disposition.APPLIED, state)
    task = await floor.task(one.task.task_id)
    assert (task["state"], task.get("effect_uncertain", False)) == (state, uncertain)
    # Asked again, whatever became of it: the task as it is.
    assert await cancel(floor, one.task.task_id) == task


# The same after an earlier attempt with an unknown effect, which only a success makes certain.
AFTER_UNCERTAINTY = [
    (Outcome.CANCELLED, "NEEDS_REVIEW", True),
    (Outcome.SUCCEEDED, "SUCCEEDED", False),
    (Outcome.FAILED, "NEEDS_REVIEW", True),
    (Outcome.UNKNOWN, "NEEDS_REVIEW", True),
]


@pytest.mark.parametrize(("outcome", "state", "uncertain"), AFTER_UNCERTAINTY)
async def test_a_confirmed_cancellation_does_not_wipe_what_was_uncertain_before(
    floor: Floor, outcome: Outcome, state: str, uncertain: bool
) -> None:
    one = await floor.running_uncertain()
    await cancel(floor, one.task.task_id)

    await floor.worker.finish(report(one.attempt, outcome))

    task = await floor.task(one.task.task_id)
    assert (task["state"], task.get("effect_uncertain", False)) == (state, uncertain)


@pytest.mark.parametrize("safety", ["RECONCILE_ONLY", "IDEMPOTENT"])
async def test_a_lease_that_is_over_after_the_intent_needs_review(floor: Floor, node: Node, safety: str) -> None:
    one = await floor.running(recovery_safety=safety, retry=AGAIN_AT_ONCE)
    await cancel(floor, one.task.task_id)

    await end_lease(node, one.task.task_id)

    task = await floor.task(one.task.task_id)
    assert (task["state"], task["effect_uncertain"], task["error_code"]) == ("NEEDS_REVIEW", True, "LEASE_EXPIRED")


async def test_cancelled_without_an_intent_is_refused(floor: Floor) -> None:
    one = await floor.running()

    with pytest.raises(Refusal, match="STATE_CONFLICT"):
        await floor.worker.finish(report(one.attempt, Outcome.CANCELLED))

    assert (await floor.task(one.task.task_id))["state"] == "RUNNING"


async def test_a_waiting_task_with_an_uncertain_effect_goes_to_a_person(floor: Floor) -> None:
    task_id = await floor.waiting_uncertain()

    task = await cancel(floor, task_id)

    assert (task["state"], task["error_code"], task["effect_uncertain"]) == ("NEEDS_REVIEW", "CANCEL_REQUESTED", True)
    assert "completed_at" not in task
    last = (await floor.events(task_id))[-1]
    assert (last["event_type"], last["decision"], last["effect_uncertain"]) == (
        "task.needs_review",
        "RECONCILIATION_REQUIRED",
        True,
    )


async def test_a_claimed_task_with_an_uncertain_effect_goes_to_a_person(floor: Floor) -> None:
    one = await floor.leased_uncertain()

    task = await cancel(floor, one.task.task_id)
    told = await floor.worker.cancellation()

    assert (task["state"], task["error_code"], task["effect_uncertain"]) == ("NEEDS_REVIEW", "CANCEL_REQUESTED", True)
    assert told.identity == one.attempt.identity
    first, second = await floor.attempts(one.task.task_id)
    assert (first["outcome"], second["outcome"], second["state"]) == ("UNKNOWN", "UNSTARTED", "ENDED")
    assert second["decision"] == "RECONCILIATION_REQUIRED"
    with pytest.raises(Refusal, match="STATE_CONFLICT"):
        await floor.worker.start(one.attempt)


async def test_cancelling_under_review_is_noted_and_a_person_still_decides(floor: Floor) -> None:
    one = await floor.under_review()
    before = await floor.task(one.task.task_id)

    task = await cancel(floor, one.task.task_id)

    assert task == before | {"cancel_requested_at": task["cancel_requested_at"]}
    resolved = (await resolve(floor.api, one.task.task_id, "SUCCEEDED")).json()
    assert (resolved["state"], resolved["cancel_requested_at"]) == ("SUCCEEDED", task["cancel_requested_at"])
    assert await cancel(floor, one.task.task_id) == resolved


@pytest.mark.parametrize("outcome", [Outcome.SUCCEEDED, Outcome.FAILED])
async def test_a_task_that_ended_before_is_not_cancelled(floor: Floor, outcome: Outcome) -> None:
    one = await floor.running()
    await floor.worker.finish(report(one.attempt, outcome))

    answer = await floor.api.cancel(one.task.task_id)

    assert (answer.status_code, answer.json()["code"]) == (409, "STATE_CONFLICT")
    assert await floor.audit(one.task.task_id) == []


async def test_every_cancellation_is_audited_once_with_the_credential(floor: Floor, node: Node) -> None:
    one = await floor.leased()
    await asyncio.gather(*(floor.api.cancel(one.task.task_id) for _ in range(8)))

    [entry] = await floor.audit(one.task.task_id)

    [(credential_id,)] = await rows(
        node, "SELECT credential_id FROM credentials WHERE queue_id = :id", id=floor.api.queue_id
    )
    assert (entry["actor"], entry["action"]) == (credential_id, "task.cancel")
    assert entry["details"] == {"was": "LEASED", "state": "CANCELLED", "version": "3"}
    assert "evidence" not in entry


async def test_a_session_on_another_node_is_told_too(platform_dsn: DSN, node: Node, api: Api) -> None:
    """The cancellation comes to one node, the worker is connected to another."""
    token = api.http.headers["Authorization"].removeprefix("Bearer ")
    hello = registration(api.queue_id, cancellation_notifications=True)
    async with (
        running_node(platform_dsn) as other,
        WorkerClient.open(other.base_url, token, hello, capacity=2) as worker,
    ):
        unstarted, started = await Floor(api, worker).leased(), await Floor(api, worker).running()
        await api.cancel(started.task.task_id)
        await api.cancel(unstarted.task.task_id)

        told = {(await worker.cancellation()).attempt_id for _ in range(2)}

    assert told == {unstarted.attempt.attempt_id, started.attempt.attempt_id}


async def test_a_running_attempt_is_told_again_after_a_reconnect(node: Node, api: Api) -> None:
    token = api.http.headers["Authorization"].removeprefix("Bearer ")
    hello = registration(api.queue_id, cancellation_notifications=True)
    async with WorkerClient.open(node.base_url, token, hello, capacity=1) as worker:
        one = await Floor(api, worker).running()
    await api.cancel(one.task.task_id)
    async with WorkerClient.open(node.base_url, token, hello, capacity=1) as worker:
        lease = await worker.resume(one.attempt)
        told = await worker.cancellation()

    assert told.identity == one.attempt.identity
    assert lease.cancel_requested_at == told.cancel_requested_at


async def test_an_unstarted_attempt_that_ran_out_is_no_cancellation(floor: Floor, node: Node) -> None:
    one = await floor.leased(retry=AGAIN_AT_ONCE)

    await end_lease(node, one.task.task_id)
    again = await floor.assigned(one.task.task_id)

    assert again.attempt.epoch == 2
    await floor.leased()
    assert floor.worker.cancellations.empty()


async def test_who_waits_for_what_a_person_does_is_woken(node: Node, api: Api) -> None:
    """Without these wake-ups everything still happens, but only when its turn to look comes round."""
    async with Floor.open(node.base_url, api) as floor:
        subscription_id = (await api.subscribe(event_types=["task.cancelled", "task.submitted"])).json()[
            "subscription_id"
        ]
        leased, running = await floor.leased(), await floor.running()
        reviews = [await floor.under_review() for _ in range(2)]
        instance = instance_key((await floor.attempts(leased.task.task_id))[0]["instance_id"])
        queue, subscription = queue_key(api.queue_id), subscription_key(subscription_id)

        acts: list[tuple[Callable[[], Awaitable[httpx.Response]], tuple[str, ...]]] = [
            (lambda: api.cancel(leased.task.task_id), (instance, queue, subscription)),
            (lambda: api.cancel(running.task.task_id), (instance,)),
            (lambda: resolve(api, reviews[0].task.task_id, "CANCELLED"), (subscription,)),
            (lambda: retry(api, reviews[1].task.task_id), (queue, subscription)),
        ]
        for act, keys in acts:
            with ExitStack() as stack:
                watches = [stack.enter_context(node.platform.wake.watch(key)) for key in keys]
                answer = await act()
                assert answer.status_code in {200, 201}, answer.text
                assert [await watch.wait(0) for watch in watches] == [True] * len(keys)

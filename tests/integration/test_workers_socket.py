"""Workers over real sockets: greeting, capacity, dispatch, cancellation, fencing, drain, and how it all ends."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from structlog.testing import capture_logs
from websockets.exceptions import InvalidStatus

from orbit.protocol import worker_v1
from orbit.protocol.attempt_v1 import AttemptState, Disposition, Outcome
from orbit.protocol.http_v1 import TaskState
from orbit.protocol.limits import Limits
from orbit.protocol.schemas import worker_schema
from orbit.protocol.values import Secret, new_id
from orbit.protocol.worker_v1 import Capability, Capacity
from tests.support.platform import Api, fresh_credentials, running_node
from tests.support.rows import rows
from tests.support.wire_client import DEADLINE_S, Closed, Refusal, upgraded
from tests.support.worker_client import TEXT, WorkerClient, registration, report, socket

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from orbit.mysql.dsn import DSN
    from tests.support.platform import Node


@pytest.fixture
def token(credentials: dict[str, Any]) -> str:
    """This test's credential."""
    bearer: str = credentials["token"]
    return bearer


def opened(node: Node, token: str, hello: worker_v1.Hello, **given: Any) -> AbstractAsyncContextManager[WorkerClient]:
    """A worker at this node."""
    return WorkerClient.open(node.base_url, token, hello, **given)


async def submit(api: Api, **given: Any) -> str:
    """Submit a task; its id."""
    accepted = (await api.submit(**given)).json()
    task_id: str = accepted["task"]["task_id"]
    return task_id


async def shown(api: Api, task_id: str) -> dict[str, Any]:
    """The task as the interface shows it."""
    task: dict[str, Any] = (await api.http.get(f"/v1/tasks/{task_id}")).json()
    return task


async def test_a_task_goes_through_a_worker(api: Api, node: Node, token: str) -> None:
    task_id = await submit(api, payload={"text": "  Hello Orbit  "})

    async with opened(node, token, registration(api.queue_id), capacity=4) as worker:
        assignment = await worker.assignment()
        assert assignment.task.task_id == task_id
        assert assignment.task.payload == {"text": "  Hello Orbit  "}
        assert (assignment.task.attempt_number, assignment.attempt.epoch) == (1, 1)
        started = await worker.start(assignment.attempt)
        assert (started.lease.state, started.lease.active) == (AttemptState.RUNNING, True)
        finished = await worker.finish(report(assignment.attempt, result='{"text":"HELLO ORBIT"}'))

    assert finished.disposition is Disposition.APPLIED
    assert finished.receipt.task_state is TaskState.SUCCEEDED
    assert (finished.lease.state, finished.lease.active) == (AttemptState.ENDED, False)
    task = await shown(api, task_id)
    assert (task["state"], task["version"], task["attempt_count"]) == ("SUCCEEDED", "4", 1)
    assert task["result"] == {"text": "HELLO ORBIT"}


async def test_a_waiting_worker_gets_a_new_task_at_once(api: Api, platform_dsn: DSN, token: str) -> None:
    """The node would look again only after an hour: the submit itself wakes the worker."""
    async with (
        running_node(platform_dsn, limits=Limits(node_poll_s=3600)) as slow,
        opened(slow, token, registration(api.queue_id), capacity=1) as worker,
        api_at(slow, api) as here,
    ):
        task_id = await submit(here)
        first = await worker.assignment()
        assert first.task.task_id == task_id
        # And so does the end of the one that it holds.
        other = await submit(here)
        await worker.start(first.attempt)
        await worker.finish(report(first.attempt))
        assert (await worker.assignment()).task.task_id == other


async def test_a_task_that_was_submitted_elsewhere_is_found(
    api: Api, node: Node, platform_dsn: DSN, token: str
) -> None:
    async with running_node(platform_dsn) as other, opened(other, token, registration(api.queue_id), capacity=1) as one:
        task_id = await submit(api)
        assert (await one.assignment()).task.task_id == task_id


def api_at(node: Node, api: Api) -> Api:
    """The same credential at another node."""
    token = api.http.headers["Authorization"].removeprefix("Bearer ")
    return Api(node.base_url, {"queue_id": api.queue_id, "token": token})


async def test_a_welcome_says_what_the_session_is(api: Api, node: Node, token: str) -> None:
    hello = registration(api.queue_id)
    async with opened(node, token, hello) as worker:
        welcome = worker.welcome
        assert welcome is not None
        assert (welcome.instance_id, welcome.queue_id, welcome.revision) == (hello.instance_id, api.queue_id, 1)
        assert (welcome.capacity, welcome.drain, welcome.sequence) == (0, False, None)
        assert (welcome.session_until - welcome.server_time).total_seconds() == 45
        confirmed = await worker.capacity(3)
        assert (confirmed.sequence, confirmed.capacity, confirmed.drain, confirmed.revision) == (1, 3, False, 1)
        assert confirmed.session_until > welcome.session_until


async def test_nothing_is_dispatched_before_the_first_capacity(api: Api, node: Node, token: str) -> None:
    task_id = await submit(api)
    hello = registration(api.queue_id)
    async with opened(node, token, hello, capacity=1) as worker:
        held = (await worker.assignment()).attempt
    other = await submit(api)

    async with opened(node, token, hello) as worker:
        lease = await worker.resume(held)
        assert (lease.task_id, lease.state, lease.active) == (task_id, AttemptState.LEASED, True)
        # Its own place is taken by what it holds, one more is free.
        assert worker.assignments.empty()
        await worker.capacity(2)
        assert (await worker.assignment()).task.task_id == other
        await worker.start(held)


async def test_capacity_renews_the_session_and_no_lease(api: Api, node: Node, token: str) -> None:
    task_id = await submit(api)
    async with opened(node, token, registration(api.queue_id), capacity=1) as worker:
        attempt = (await worker.assignment()).attempt
        before = await rows(node, "SELECT lease_until FROM attempts WHERE task_id = :id", id=task_id)
        again = await worker.request("worker.capacity", Capacity(sequence=1, capacity=1, drain=False))
        assert again.sequence == 1
        assert await rows(node, "SELECT lease_until FROM attempts WHERE task_id = :id", id=task_id) == before
        assert (await worker.resume(attempt)).lease_until == (await worker.resume(attempt)).lease_until


async def test_capacity_zero_stops_claims_and_releases_nothing(api: Api, node: Node, token: str) -> None:
    await submit(api)
    async with opened(node, token, registration(api.queue_id), capacity=2) as worker:
        held = (await worker.assignment()).attempt
        await worker.capacity(0)
        task_id = await submit(api)
        await worker.start(held)
        assert (await worker.finish(report(held))).disposition is Disposition.APPLIED
        async with opened(node, token, registration(api.queue_id), capacity=1) as other:
            assert (await other.assignment()).task.task_id == task_id
        assert worker.assignments.empty()


async def test_a_capacity_beyond_the_hellos_is_refused_and_the_session_goes_on(
    api: Api, node: Node, token: str
) -> None:
    async with opened(node, token, registration(api.queue_id, capacity=2)) as worker:
        with pytest.raises(Refusal) as caught:
            await worker.capacity(3)
        assert caught.value.code == "INVALID_ARGUMENT"
        await worker.capacity(2)
        await submit(api)
        await worker.assignment()


async def test_drain_survives_reconnecting_and_is_not_undone(api: Api, node: Node, token: str) -> None:
    await submit(api)
    hello = registration(api.queue_id)
    async with opened(node, token, hello, capacity=2) as worker:
        held = (await worker.assignment()).attempt
        assert (await worker.capacity(2, drain=True)).drain is True
        with pytest.raises(Refusal) as caught:
            await worker.capacity(2)
        assert caught.value.code == "STATE_CONFLICT"

    await submit(api)
    async with opened(node, token, hello) as worker:
        assert worker.welcome is not None
        assert worker.welcome.drain is True
        with pytest.raises(Refusal):
            await worker.capacity(2)
        # What it holds, it may still start and report.
        await worker.capacity(2, drain=True)
        await worker.start(held)
        assert (await worker.finish(report(held))).disposition is Disposition.APPLIED
        assert worker.assignments.empty()


async def test_a_newer_session_fences_the_older_at_once(api: Api, platform_dsn: DSN, token: str) -> None:
    """The node would look by itself only after an hour: the newer hello wakes the older session."""
    hello = registration(api.queue_id)
    async with (
        running_node(platform_dsn, limits=Limits(node_poll_s=3600)) as slow,
        opened(slow, token, hello, capacity=1) as older,
        opened(slow, token, hello, capacity=1) as newer,
        api_at(slow, api) as here,
    ):
        assert newer.welcome is not None
        assert newer.welcome.revision == 2
        assert await older.closed() == 1008
        assert older.ended is not None
        assert older.ended.code == "SESSION_FENCED"
        await submit(here)
        await newer.assignment()


async def test_a_session_is_fenced_from_another_node(api: Api, node: Node, platform_dsn: DSN, token: str) -> None:
    hello = registration(api.queue_id)
    async with (
        running_node(platform_dsn) as other,
        opened(node, token, hello, capacity=1) as older,
        opened(other, token, hello),
    ):
        assert await older.closed() == 1008
        assert older.ended is not None
        assert older.ended.code == "SESSION_FENCED"


async def test_a_fenced_session_learns_it_from_its_next_request(api: Api, platform_dsn: DSN, token: str) -> None:
    """The node of the old session does not look by itself for an hour."""
    hello = registration(api.queue_id)
    await submit(api)
    async with (
        running_node(platform_dsn, limits=Limits(node_poll_s=3600)) as slow,
        running_node(platform_dsn) as other,
        opened(slow, token, hello, capacity=1) as older,
    ):
        held = (await older.assignment()).attempt
        async with opened(other, token, hello) as newer:
            with pytest.raises((Refusal, Closed)):
                await older.start(held)
            assert await older.closed() == 1008
            assert older.ended is not None
            assert older.ended.code == "SESSION_FENCED"
            assert (await newer.resume(held)).state is AttemptState.LEASED


CHANGED: dict[str, Any] = {
    "capacity": 15,
    "capabilities": (TEXT, Capability(handler="other", handler_version="v1", payload_version="v1")),
    "cancellation_notifications": True,
    "concurrency_keys": True,
}


@pytest.mark.parametrize("changed", CHANGED)
async def test_an_instance_is_what_its_first_hello_said(api: Api, node: Node, token: str, changed: str) -> None:
    hello = registration(api.queue_id)
    async with opened(node, token, hello) as worker:
        with pytest.raises(Refusal) as caught:
            async with opened(node, token, replace(hello, **{changed: CHANGED[changed]})):
                pass
        assert caught.value.code == "IDEMPOTENCY_CONFLICT"
        # Who was refused has fenced nobody.
        await worker.capacity(1)


async def test_the_order_of_capabilities_does_not_matter(api: Api, node: Node, token: str) -> None:
    both = CHANGED["capabilities"]
    hello = registration(api.queue_id, capabilities=both)
    async with opened(node, token, hello):
        pass
    async with opened(node, token, replace(hello, capabilities=both[::-1])) as worker:
        assert worker.welcome is not None
        assert worker.welcome.revision == 2


async def test_an_instance_belongs_to_its_secret_and_its_credential(
    api: Api, node: Node, platform_dsn: DSN, credentials: dict[str, Any]
) -> None:
    hello = registration(api.queue_id)
    names = {name: credentials[name] for name in ("application", "namespace", "environment", "queue")}
    colleague = await fresh_credentials(platform_dsn, **names)
    async with opened(node, credentials["token"], hello) as worker:
        with pytest.raises(Refusal) as caught:
            async with opened(node, credentials["token"], replace(hello, instance_secret=Secret.new())):
                pass
        assert caught.value.code == "INVALID_PROOF"
        with pytest.raises(Refusal) as caught:
            async with opened(node, colleague["token"], hello):
                pass
        assert caught.value.code == "IDEMPOTENCY_CONFLICT"
        await worker.capacity(1)


async def test_first_hellos_of_one_instance_at_once_make_two_sessions(api: Api, node: Node, token: str) -> None:
    hello = registration(api.queue_id)

    async def greet() -> int:
        async with opened(node, token, hello) as worker:
            assert worker.welcome is not None
            return worker.welcome.revision

    assert sorted(await asyncio.gather(*(greet() for _ in range(4)))) == [1, 2, 3, 4]


async def test_a_worker_reaches_its_credentials_queue_alone(
    api: Api, node: Node, platform_dsn: DSN, credentials: dict[str, Any]
) -> None:
    names = {name: credentials[name] for name in ("application", "namespace", "environment")}
    neighbour = await fresh_credentials(platform_dsn, **names, queue="other")
    stranger = await fresh_credentials(platform_dsn)
    for queue_id, code in (
        (neighbour["queue_id"], "PERMISSION_DENIED"),
        (stranger["queue_id"], "NOT_FOUND"),
        (new_id(), "NOT_FOUND"),
    ):
        with pytest.raises(Refusal) as caught:
            async with opened(node, credentials["token"], registration(queue_id)):
                pass
        assert caught.value.code == code


async def test_who_may_not_work_is_refused_before_the_upgrade(node: Node, platform_dsn: DSN, token: str) -> None:
    producer = await fresh_credentials(platform_dsn, worker_access=False)
    for bearer, subprotocol, status in (
        (producer["token"], worker_v1.SUBPROTOCOL, 403),
        (Secret.new().reveal(), worker_v1.SUBPROTOCOL, 401),
        (token, "pulse.events.v1", 426),
    ):
        with pytest.raises(InvalidStatus) as caught:
            async with upgraded(node.base_url, worker_v1.PATH, bearer, subprotocol):
                pass
        assert caught.value.response.status_code == status


@pytest.mark.parametrize("asked", [True, False])
async def test_a_cancel_intent_is_told_once_in_a_session_to_who_asked(
    api: Api, node: Node, token: str, asked: bool
) -> None:
    task_id, other_id = await submit(api), await submit(api)
    hello = registration(api.queue_id, cancellation_notifications=asked)
    async with opened(node, token, hello, capacity=2) as worker:
        attempts = {one.task.task_id: one.attempt for one in [await worker.assignment(), await worker.assignment()]}
        for one in attempts.values():
            await worker.start(one)
        await intent(node, task_id)
        if not asked:
            # The one who does not listen learns it from its own questions.
            assert (await worker.resume(attempts[task_id])).cancel_requested_at is not None
            assert worker.cancellations.empty()
            return
        told = await worker.cancellation()
        assert (told.task_id, told.attempt_id, told.epoch) == (task_id, attempts[task_id].attempt_id, 1)
        # The next one told is the other task's: the first was not told again.
        await intent(node, other_id)
        assert (await worker.cancellation()).task_id == other_id
        assert worker.cancellations.empty()

    async with opened(node, token, hello, capacity=2) as worker:
        again = {(await worker.cancellation()).task_id for _ in range(2)}
        assert again == {task_id, other_id}
        result = await worker.finish(report(attempts[task_id], Outcome.CANCELLED))
        assert result.receipt.task_state is TaskState.CANCELLED


async def intent(node: Node, task_id: str) -> None:
    """Store a cancel intent and nothing else."""
    await rows(node, "UPDATE tasks SET cancel_requested_at = UTC_TIMESTAMP(6) WHERE task_id = :id", id=task_id)


async def test_a_refused_request_costs_only_itself(api: Api, node: Node, token: str) -> None:
    await submit(api)
    async with opened(node, token, registration(api.queue_id), capacity=1) as worker:
        attempt = (await worker.assignment()).attempt
        for wrong in (replace(attempt, lease_secret=Secret.new()), replace(attempt, attempt_id=new_id())):
            with pytest.raises(Refusal):
                await worker.start(wrong)
        await worker.start(attempt)


async def test_the_largest_payload_fits_into_an_assignment(api: Api, node: Node, token: str) -> None:
    payload = "x" * (Limits().payload_bytes - 2)
    longest = {"handler": "h" * 128, "handler_version": "v" * 64, "payload_version": "p" * 64}
    task_id = await submit(api, payload=payload, concurrency_key="k" * 128, priority=9, **longest)
    hello = registration(api.queue_id, capabilities=(Capability(**longest),), concurrency_keys=True)
    async with opened(node, token, hello, capacity=1) as worker:
        assignment = await worker.assignment()
        assert (assignment.task.task_id, assignment.task.payload) == (task_id, payload)


async def test_a_payload_that_was_broken_by_hand_costs_its_own_task_only(api: Api, node: Node, token: str) -> None:
    broken, other = await submit(api), await submit(api)
    await rows(node, "UPDATE tasks SET payload = :payload WHERE task_id = :task_id", payload='{"a":}', task_id=broken)
    with capture_logs() as logs:
        async with opened(node, token, registration(api.queue_id), capacity=2) as worker:
            assignment = await worker.assignment()
            await worker.start(assignment.attempt)

    assert assignment.task.task_id == other
    assert [(line["task_id"], line["reason"]) for line in logs if line["event"] == "task cannot be sent"] == [
        (broken, "body.task.payload: invalid JSON at byte 5: a value is missing")
    ]


async def test_the_largest_result_reaches_the_task(api: Api, node: Node, token: str) -> None:
    task_id = await submit(api)
    result = '"' + "ä" * (128 * 1024 - 1) + '"'
    assert len(result.encode()) == Limits().result_bytes
    async with opened(node, token, registration(api.queue_id), capacity=1) as worker:
        attempt = (await worker.assignment()).attempt
        await worker.start(attempt)
        await worker.finish(report(attempt, result=result))
    assert (await shown(api, task_id))["result"] == json.loads(result)


@pytest.mark.parametrize(("extra", "code"), [(0, None), (1, 1009)])
async def test_a_frame_may_have_512_kib_and_not_one_byte_more(
    api: Api, node: Node, token: str, extra: int, code: int | None
) -> None:
    async with socket(node.base_url, token) as connection:
        client = WorkerClient(connection)
        frame = client.session.hello(registration(api.queue_id), new_id()).decode()
        await connection.send(frame + " " * (512 * 1024 + extra - len(frame)))
        async with asyncio.timeout(DEADLINE_S):
            if code is None:
                assert json.loads(await connection.recv())["type"] == "worker.welcome"
            else:
                await connection.wait_closed()
                assert connection.close_code == code


async def test_a_worker_that_says_nothing_is_let_go_and_its_work_is_not(
    api: Api, platform_dsn: DSN, token: str
) -> None:
    await submit(api)
    hello = registration(api.queue_id)
    async with running_node(platform_dsn, limits=Limits(read_idle_s=0.5)) as strict:
        async with opened(strict, token, hello, capacity=1) as worker:
            held = (await worker.assignment()).attempt
            assert await worker.closed() == 1008
        async with opened(strict, token, hello) as worker:
            assert (await worker.resume(held)).active


async def test_a_stopping_node_gives_out_nothing_more(api: Api, platform_dsn: DSN, token: str) -> None:
    async with (
        running_node(platform_dsn) as stopping,
        opened(stopping, token, registration(api.queue_id), capacity=1) as worker,
        api_at(stopping, api) as here,
    ):
        stopping.platform.draining.set()
        # Submitted here, so that the worker's pusher looks before this is answered.
        task_id = await submit(here)
        # It still answers.
        await worker.capacity(1)
        assert worker.assignments.empty()
        assert (await shown(api, task_id))["state"] == "WAITING"


async def test_no_log_holds_what_workers_say(api: Api, platform_dsn: DSN, credentials: dict[str, Any]) -> None:
    secrets: list[str] = [credentials["token"]]
    with capture_logs() as logs:
        async with running_node(platform_dsn) as quiet:
            await submit(api, payload="payload-canary")
            hello = registration(api.queue_id)
            async with opened(quiet, credentials["token"], hello, capacity=1) as worker:
                attempt = (await worker.assignment()).attempt
                with pytest.raises(Refusal):
                    await worker.start(replace(attempt, lease_secret=Secret.new()))
                await worker.start(attempt)
                await worker.finish(report(attempt, Outcome.FAILED, result='"result-canary"'))
            secrets += [hello.instance_secret.reveal(), attempt.lease_secret.reveal()]
    text = repr(logs)
    assert "worker greeted" in text
    for secret in (*secrets, "payload-canary", "result-canary"):
        assert secret not in text


async def test_the_schema_is_published(node: Node) -> None:
    async with httpx.AsyncClient(base_url=node.base_url, trust_env=False) as http:
        answer = await http.get("/v1/schemas/worker.schema.json")
    assert answer.content == worker_schema()
    assert answer.headers["Content-Type"] == "application/json"

"""Workers over real sockets: greeting, capacity, dispatch, commands, fencing and drain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orbit.protocol.attempt_v1 import AttemptState, Disposition
from orbit.protocol.http_v1 import TaskState
from tests.support.worker_client import WorkerClient, registration, report

if TYPE_CHECKING:
    from tests.support.platform import Api, Node


async def test_a_task_goes_through_a_worker(api: Api, node: Node, credentials: dict[str, Any]) -> None:
    task_id = (await api.submit(payload={"text": "  Hello Orbit  "})).json()["task"]["task_id"]

    async with WorkerClient.open(node.base_url, credentials["token"], registration(api.queue_id), capacity=4) as worker:
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
    task = (await api.http.get(f"/v1/tasks/{task_id}")).json()
    assert (task["state"], task["version"], task["attempt_count"]) == ("SUCCEEDED", "4", 1)
    assert task["result"] == {"text": "HELLO ORBIT"}

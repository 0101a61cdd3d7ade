"""Tasks in the states that cancelling and a person's recovery are about, brought there by a real worker."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from orbit.protocol.attempt_v1 import Outcome
from orbit.protocol.values import new_id
from tests.support.worker_client import WorkerClient, registration, report

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

    from orbit.protocol.assignment_v1 import Assignment
    from tests.support.platform import Api

AGAIN_AT_ONCE = {"max_attempts": 5, "initial_delay_ms": 1, "max_delay_ms": 1}
AGAIN_LATER = {"max_attempts": 5, "initial_delay_ms": 3_000_000, "max_delay_ms": 3_000_000}


class Floor:
    """A queue with one worker, and tasks at every stage of their lives."""

    def __init__(self, api: Api, worker: WorkerClient) -> None:
        self.api = api
        self.worker = worker

    @classmethod
    @asynccontextmanager
    async def open(cls, base_url: str, api: Api, **given: Any) -> AsyncIterator[Floor]:
        """A floor whose worker asks to be told of cancellations, or as given."""
        token = api.http.headers["Authorization"].removeprefix("Bearer ")
        hello = registration(api.queue_id, **({"cancellation_notifications": True} | given))
        async with WorkerClient.open(base_url, token, hello, capacity=hello.capacity) as worker:
            yield cls(api, worker)

    async def submitted(self, **given: Any) -> str:
        """Submit a task; its id."""
        answer = await self.api.submit(**given)
        assert answer.status_code == 201, answer.text
        task_id: str = answer.json()["task"]["task_id"]
        return task_id

    async def leased(self, **given: Any) -> Assignment:
        """A task that the worker was given and has not started."""
        task_id = await self.submitted(**given)
        return await self.assigned(task_id)

    async def assigned(self, task_id: str) -> Assignment:
        """The next assignment, which is of this task."""
        assignment = await self.worker.assignment()
        assert assignment.task.task_id == task_id
        return assignment

    async def running(self, **given: Any) -> Assignment:
        """A task that the worker has started."""
        assignment = await self.leased(**given)
        await self.worker.start(assignment.attempt)
        return assignment

    async def under_review(self, **given: Any) -> Assignment:
        """A task of whose only attempt the worker does not know what it did."""
        assignment = await self.running(**given)
        await self.worker.finish(report(assignment.attempt, Outcome.UNKNOWN))
        return assignment

    async def waiting_uncertain(self) -> str:
        """A task that waits for its second attempt, after a first one with an unknown effect."""
        first = await self.running(recovery_safety="IDEMPOTENT", retry=AGAIN_LATER)
        await self.worker.finish(report(first.attempt, Outcome.UNKNOWN))
        return first.task.task_id

    async def leased_uncertain(self) -> Assignment:
        """A task whose second attempt is claimed, after a first one with an unknown effect."""
        first = await self.running(recovery_safety="IDEMPOTENT", retry=AGAIN_AT_ONCE)
        await self.worker.finish(report(first.attempt, Outcome.UNKNOWN))
        return await self.assigned(first.task.task_id)

    async def running_uncertain(self) -> Assignment:
        """The same, started."""
        assignment = await self.leased_uncertain()
        await self.worker.start(assignment.attempt)
        return assignment

    async def task(self, task_id: str) -> dict[str, Any]:
        """The task as it is now."""
        answer = await self.api.http.get(f"/v1/tasks/{task_id}")
        assert answer.status_code == 200, answer.text
        task: dict[str, Any] = answer.json()
        return task

    async def attempts(self, task_id: str) -> list[dict[str, Any]]:
        """The task's attempts."""
        attempts: list[dict[str, Any]] = (await self.api.http.get(f"/v1/tasks/{task_id}/attempts")).json()["attempts"]
        return attempts

    async def events(self, task_id: str) -> list[dict[str, Any]]:
        """The task's events."""
        events: list[dict[str, Any]] = (await self.api.http.get(f"/v1/tasks/{task_id}/events")).json()["events"]
        return events

    async def audit(self, task_id: str) -> list[dict[str, Any]]:
        """What was done to the task by hand."""
        entries: list[dict[str, Any]] = (await self.api.http.get(f"/v1/tasks/{task_id}/audit")).json()["entries"]
        return entries


async def resolve(api: Api, task_id: str, outcome: str, key: str | None = None, **given: Any) -> httpx.Response:
    """POST /v1/tasks/{task_id}/resolve, with a new key and some evidence unless they are given."""
    content = {"outcome": outcome, "evidence": "ticket 4711"} | given
    headers = {"Idempotency-Key": key or new_id()}
    return await api.http.post(f"/v1/tasks/{task_id}/resolve", json=content, headers=headers)


async def retry(api: Api, task_id: str, key: str | None = None) -> httpx.Response:
    """POST /v1/tasks/{task_id}/retry, with a new key unless one is given."""
    headers = {"Idempotency-Key": key or new_id()}
    return await api.http.post(f"/v1/tasks/{task_id}/retry", headers=headers)

"""A worker that speaks the protocol by hand: one task, from its submission to its result.

    orbit-sandbox run -- python examples/worker_protocol.py

or, on a platform of your own, with the credentials of `orbit-admin bootstrap --worker-access`:

    ORBIT_URL=http://127.0.0.1:8080 ORBIT_CREDENTIALS_FILE=worker.credentials.json python examples/worker_protocol.py

It prints one line and exits 0, or says on stderr what it knows and exits 1:

    task=<32 hexadecimal digits> final_state=SUCCEEDED attempts=1 result={"text":"HELLO ORBIT"}

An answer that is lost says nothing about what the platform did. So start and finish are reported again, at most twice,
over new connections: by the same process identity, with the same proof, message id and content. The function runs once,
after the first confirmed start that gives an execution deadline. What is not confirmed lives in this process only: if
it dies, the platform ends the attempt and asks a person. Work that may outlast its lease needs renewals as well.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from msgspec import Raw

from orbit.protocol.http_v1 import SubmitTask, TaskState
from orbit.sdk import (
    Attempt,
    Capability,
    Disposition,
    Finish,
    OrbitClient,
    OrbitError,
    Outcome,
    WorkerConnection,
    WorkerRegistration,
    new_worker_message_id,
    new_worker_registration,
)

RECONNECTS = 2
PAUSE_S = 0.5
ASSIGNMENT_S = 30.0

T = TypeVar("T")


class GaveUp(Exception):
    """The task cannot be brought to its end from here; says what is known."""


def normalize(payload: Any) -> dict[str, str]:
    """The work: trim a text and write it in capitals."""
    return {"text": payload["text"].strip().upper()}


class Link:
    """The connection of this process, dialled again when an outcome must be settled."""

    def __init__(self, client: OrbitClient, registration: WorkerRegistration) -> None:
        self._client = client
        self._registration = registration
        self._connection: WorkerConnection | None = None
        self._sequence = 0

    async def connect(self) -> WorkerConnection:
        """Dial, in place of the connection before."""
        await self.close()
        self._sequence = 0
        self._connection = await self._client.dial_worker(self._registration)
        return self._connection

    async def close(self) -> None:
        """Close the connection if there is one."""
        if self._connection is not None:
            await self._connection.close()

    async def announce(self, connection: WorkerConnection, capacity: int, *, drain: bool) -> None:
        """Say how many tasks this process takes; the sequence counts from 1 on each connection."""
        self._sequence += 1
        await connection.capacity(new_worker_message_id(), sequence=self._sequence, capacity=capacity, drain=drain)

    async def settle(self, attempt: Attempt, operation: Callable[[WorkerConnection], Awaitable[T]]) -> T:
        """Carry out an operation that may be repeated as it is, until its outcome is known or the dials are used up."""
        for dials in range(RECONNECTS + 1):
            try:
                connection = self._connection
                if connection is None or dials > 0:
                    connection = await self.connect()
                    await connection.resume(new_worker_message_id(), attempt)
                return await operation(connection)
            except OrbitError as error:
                if not error.temporary or dials == RECONNECTS:
                    raise
                print(f"worker_protocol: {error}; asking again over a new connection", file=sys.stderr)
            await asyncio.sleep(PAUSE_S)
        raise AssertionError("the last dial returns or raises")


async def work(link: Link) -> None:
    """Take one task, run it once and report it."""
    connection = await link.connect()
    await link.announce(connection, 1, drain=False)
    async with asyncio.timeout(ASSIGNMENT_S):
        assignment = await connection.next_assignment()
    attempt = assignment.attempt

    start_id = new_worker_message_id()
    started = await link.settle(attempt, lambda connection: connection.start(start_id, attempt))
    deadline = started.lease.execution_deadline()
    if deadline is None:
        raise GaveUp("the attempt may not run")
    async with asyncio.timeout_at(deadline):
        result = await asyncio.to_thread(normalize, assignment.task.payload)

    finish_id = new_worker_message_id()
    report = Finish(attempt=attempt, outcome=Outcome.SUCCEEDED, result=json.dumps(result))
    finished = await link.settle(attempt, lambda connection: connection.finish(finish_id, report))
    if finished.disposition is not Disposition.APPLIED:
        raise GaveUp("the report came too late and was kept as evidence")
    await link.settle(attempt, lambda connection: link.announce(connection, 0, drain=True))


async def run(client: OrbitClient) -> int:
    """Submit a task for a handler that only this process has, work on it, and print what the platform says of it."""
    queue_id = client.credentials.queue_id
    capability = Capability(
        # A name of this run's own: a task that an earlier run left behind is not for us.
        handler=f"text.normalize.{new_worker_message_id()}",
        handler_version="v1",
        payload_version="v1",
    )
    task = SubmitTask(
        queue_id=queue_id,
        handler=capability.handler,
        handler_version=capability.handler_version,
        payload_version=capability.payload_version,
        payload=Raw(b'{"text":"  Hello Orbit  "}'),
    )
    accepted = await client.submit_task(new_worker_message_id(), task)
    link = Link(client, new_worker_registration(queue_id, 1, [capability]))
    try:
        await work(link)
    finally:
        await link.close()

    now = await client.get_task(accepted.task.task_id)
    result = bytes(now.result).decode() if isinstance(now.result, Raw) else ""
    print(f"task={now.task_id} final_state={now.state} attempts={now.attempt_count} result={result}")
    return 0 if now.state is TaskState.SUCCEEDED else 1


async def main() -> int:
    """Run it on the platform that the environment names; the exit code."""
    try:
        async with OrbitClient.from_environment(os.environ) as client:
            return await run(client)
    except (OrbitError, GaveUp) as error:
        print(f"worker_protocol: {error}; look at the task before you decide anything", file=sys.stderr)
    except TimeoutError:
        print("worker_protocol: there was no assignment in time, or the work did not end in its lease", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

"""A failure that is safe to try again: the first attempt says so, the second one does the work.

    orbit-sandbox run -- python examples/retry.py

or, on a platform of your own, with the credentials of `orbit-admin bootstrap --worker-access`:

    ORBIT_URL=http://127.0.0.1:8080 ORBIT_CREDENTIALS_FILE=worker.credentials.json python examples/retry.py

It prints two lines and exits 0, or says on stderr what it knows and exits 1:

    task=<32 hexadecimal digits> state=SUCCEEDED attempts=2 first_retryable=true result={"text":"SAFE RETRY"}
    worker_drained=true started=2 confirmed=2 running=0

The first attempt simulates a rejection before anything was done, which is what makes it safe to say retryable; never
say so of a timeout. The platform then waits and claims the task anew. Everything in the first line is read back from
the platform. That the handler counts by `attempt_number` serves to inject one failure; it is no way to recognise work
that was done before.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass

from msgspec import Raw

from orbit.protocol.http_v1 import RecoverySafety, RetryPolicy, SubmitTask, Task, TaskState
from orbit.sdk import OrbitClient, OrbitError, TaskContext, WorkerFailure, WorkerRunner, new_worker_message_id

TASK_S = 60.0
POLL_S = 0.05
DRAIN_S = 10.0
OVER = (TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED, TaskState.NEEDS_REVIEW)


@dataclass
class Text:
    """Payload and result."""

    text: str


def normalize(payload: Text, context: TaskContext) -> Text:
    """Trim a text and write it in capitals; the first attempt is rejected before it does anything."""
    if context.attempt_number == 1:
        raise WorkerFailure("TEMPORARY_REJECTION", retryable=True, details={"reason_ref": "diagnostics/temporary"})
    return Text(payload.text.strip().upper())


async def finished(client: OrbitClient, task_id: str) -> Task:
    """Wait until the task is over."""
    async with asyncio.timeout(TASK_S):
        task = await client.get_task(task_id)
        while task.state not in OVER:
            await asyncio.sleep(POLL_S)
            task = await client.get_task(task_id)
    return task


async def run(client: OrbitClient) -> int:
    """Submit the task, work on it until it is over, and print what the platform says of its attempts."""
    # A name of this run's own: a task that an earlier run left behind is not for us.
    handler = f"text.normalize.{new_worker_message_id()}"
    runner = WorkerRunner(concurrency=1)
    runner.handler(handler, version="v1", payload_version="v1")(normalize)
    submitted = SubmitTask(
        queue_id=client.credentials.queue_id,
        handler=handler,
        handler_version="v1",
        payload_version="v1",
        payload=Raw(b'{"text":"  safe retry  "}'),
        recovery_safety=RecoverySafety.RECONCILE_ONLY,
        task_timeout_ms=60_000,
        retry=RetryPolicy(max_attempts=3, initial_delay_ms=500, max_delay_ms=2_000, attempt_timeout_ms=10_000),
    )
    # The key is made once: submitting again under it after a lost answer gives the same task.
    accepted = await client.submit_task(new_worker_message_id(), submitted)
    working = asyncio.create_task(runner.run(client))
    try:
        task = await finished(client, accepted.task.task_id)
    finally:
        await runner.stop(DRAIN_S)
        await working

    attempts = (await client.list_attempts(task.task_id)).attempts
    result = bytes(task.result).decode() if isinstance(task.result, Raw) else ""
    first_retryable = str(attempts[0].retryable).lower()
    print(
        f"task={task.task_id} state={task.state} attempts={len(attempts)} first_retryable={first_retryable}"
        f" result={result}"
    )
    print(runner.closing_line)
    expected = [("FAILED", True), ("SUCCEEDED", False)]
    return 0 if [(one.outcome, one.retryable) for one in attempts] == expected else 1


async def main() -> int:
    """Run it on the platform that the environment names; the exit code."""
    try:
        async with OrbitClient.from_environment(os.environ) as client:
            return await run(client)
    except OrbitError as error:
        print(f"retry: {error}; look at the task before you decide anything", file=sys.stderr)
    except TimeoutError:
        print("retry: the task was not over in time", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

"""A producer: submit a task once, whatever happens to the answer, and wait for its outcome.

    python examples/producer.py order-4711 "  hello  "

ORBIT_URL and ORBIT_CREDENTIALS_FILE name the platform; `examples/worker.py` does the work. The first argument is the
operation key: the producer's own name for what it wants done, such as an order's number. The same key with the same
text gives the same task, also in another process and on another day, so a producer that was told nothing, or that died,
simply runs again. The second argument is the text. It prints one line and exits 0 when the task succeeded, 1 otherwise:

    task=<32 hexadecimal digits> created=true state=SUCCEEDED attempts=1 result={"text":"HELLO"}
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from msgspec import Raw

from orbit.protocol.http_v1 import RetryPolicy, SubmitTask, Task, TaskAccepted, TaskState
from orbit.sdk import HTTPError, OrbitClient, OrbitError, TransportError

SUBMITS = 5
PAUSE_S = 0.5
TASK_S = 60.0
POLL_S = 0.1
OVER = (TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED, TaskState.NEEDS_REVIEW)


async def submit(client: OrbitClient, key: str, task: SubmitTask) -> TaskAccepted:
    """Submit until there is an answer: the key makes it one task, however often that takes."""
    for tries in range(1, SUBMITS + 1):
        try:
            return await client.submit_task(key, task)
        except (HTTPError, TransportError) as error:
            if not error.temporary or tries == SUBMITS:
                raise
            print(f"producer: {error}; submitting again under the same key", file=sys.stderr)
        await asyncio.sleep(PAUSE_S)
    raise AssertionError("the last try returns or raises")


async def finished(client: OrbitClient, task_id: str) -> Task:
    """Wait until the task is over. A service that lives longer subscribes to events instead of asking."""
    async with asyncio.timeout(TASK_S):
        task = await client.get_task(task_id)
        while task.state not in OVER:
            await asyncio.sleep(POLL_S)
            task = await client.get_task(task_id)
    return task


async def run(client: OrbitClient, key: str, text: str) -> int:
    """Submit, wait, print."""
    accepted = await submit(
        client,
        key,
        SubmitTask(
            queue_id=client.credentials.queue_id,
            handler="text.normalize",
            handler_version="v1",
            payload_version="v1",
            payload=Raw(json.dumps({"text": text}).encode()),
            # Three attempts for failures that the worker calls retryable; what it calls unknown goes to a person.
            retry=RetryPolicy(max_attempts=3, initial_delay_ms=500, max_delay_ms=2_000, attempt_timeout_ms=10_000),
        ),
    )
    task = await finished(client, accepted.task.task_id)
    result = bytes(task.result).decode() if isinstance(task.result, Raw) else ""
    print(
        f"task={task.task_id} created={str(accepted.created).lower()} state={task.state}"
        f" attempts={task.attempt_count} result={result}"
    )
    return 0 if task.state is TaskState.SUCCEEDED else 1


async def main() -> int:
    """Run it on the platform that the environment names; the exit code."""
    if len(sys.argv) != 3:
        print("usage: producer.py OPERATION_KEY TEXT", file=sys.stderr)
        return 2
    try:
        async with OrbitClient.from_environment(os.environ) as client:
            return await run(client, *sys.argv[1:])
    except OrbitError as error:
        print(f"producer: {error}; run it again with the same arguments", file=sys.stderr)
    except TimeoutError:
        print("producer: the task is not over yet; run it again with the same arguments", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

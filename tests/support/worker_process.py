"""A worker as a process of its own: takes one task, starts it, waits to be told, reports.

    python -m tests.support.worker_process RESULT

It writes JSON lines: `leased`, `started` with the seconds that its deadline is away, `finished` with the disposition.
Between the last two it waits for a line on stdin. WORKER_CLOCK_OFF_S sets its wall clock off, as Python code sees it:
`time.time`, `time.time_ns` and `datetime.now` are replaced before anything else is imported. Nothing below Python in
the SDK's way reads that clock.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import sys
import time
from typing import Any


def _set_clock(off_s: float) -> None:
    real, real_ns, real_datetime = time.time, time.time_ns, datetime.datetime
    off = datetime.timedelta(seconds=off_s)

    class Shifted(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return real_datetime.now(tz) + off

        @classmethod
        def utcnow(cls) -> Any:
            return real_datetime.now(datetime.UTC).replace(tzinfo=None) + off

    time.time = lambda: real() + off_s
    time.time_ns = lambda: real_ns() + int(off_s * 1e9)
    datetime.datetime = Shifted  # type: ignore[misc]  # the point


_set_clock(float(os.environ.get("WORKER_CLOCK_OFF_S", "0")))

from orbit.sdk import (  # noqa: E402 - after the clock
    Attempt,
    Finish,
    OrbitClient,
    Outcome,
    WorkerConnection,
    WorkerDisconnected,
    WorkerError,
    new_worker_message_id,
    new_worker_registration,
)
from tests.support.worker_client import TEXT  # noqa: E402 - after the clock


def say(what: str, **more: Any) -> None:
    print(json.dumps({"said": what, **more}), flush=True)


async def report(client: OrbitClient, registration: Any, connection: WorkerConnection, finish: Finish) -> Any:
    """Report, over a new connection when the old one is over."""
    message_id = new_worker_message_id()
    try:
        return await connection.finish(message_id, finish)
    except (WorkerDisconnected, WorkerError):
        async with await client.dial_worker(registration) as again:
            return await again.finish(message_id, finish)


async def main(result: str) -> None:
    async with OrbitClient.from_environment(os.environ) as client:
        registration = new_worker_registration(client.credentials.queue_id, 1, [TEXT])
        async with await client.dial_worker(registration) as connection:
            await connection.capacity(new_worker_message_id(), sequence=1, capacity=1, drain=False)
            attempt: Attempt = (await connection.next_assignment()).attempt
            # One task is enough: what comes back is for somebody else.
            await connection.capacity(new_worker_message_id(), sequence=2, capacity=0, drain=False)
            say("leased", task_id=attempt.task_id, attempt_id=attempt.attempt_id, epoch=attempt.epoch)
            started = await connection.start(new_worker_message_id(), attempt)
            deadline = started.lease.execution_deadline()
            say("started", left_s=None if deadline is None else deadline - time.monotonic(), wall=time.time())
            # Without the loop, as a handler that is stopped in the middle of its work.
            sys.stdin.readline()
            say("continued", may_run=started.lease.execution_deadline() is not None)
            finish = Finish(attempt=attempt, outcome=Outcome.SUCCEEDED, result=json.dumps({"by": result}))
            done = await report(client, registration, connection, finish)
            say("finished", disposition=done.disposition, task_state=done.receipt.task_state)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

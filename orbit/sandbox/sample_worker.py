"""The sample worker of `orbit dev`: one handler for each thing that may become of a task. Run as a module."""

from __future__ import annotations

import asyncio
from typing import TypedDict

from orbit.sdk import TaskContext, WorkerCancelled, WorkerFailure, WorkerRunner

runner = WorkerRunner()


class Text(TypedDict):
    """The payload of text.normalize, and its result."""

    text: str


class Seconds(TypedDict):
    """The payload of demo.sleep."""

    seconds: float


@runner.handler("text.normalize", version="v1", payload_version="v1")
def normalize(payload: Text) -> Text:
    """Succeed."""
    return {"text": payload["text"].strip().upper()}


@runner.handler("demo.flaky", version="v1", payload_version="v1")
def flaky(_: object, context: TaskContext) -> dict[str, int]:
    """Fail at the first attempt in a way that may be tried again, and succeed at the next."""
    if context.attempt_number == 1:
        raise WorkerFailure("NOT_TODAY", retryable=True)
    return {"attempts": context.attempt_number}


@runner.handler("demo.sleep", version="v1", payload_version="v1")
async def sleep(payload: Seconds, context: TaskContext) -> dict[str, float]:
    """Take a while; stop when the task's cancellation is asked for, and vouch for having left nothing open."""
    try:
        await asyncio.sleep(payload["seconds"])
    except asyncio.CancelledError:
        if context.cancelled.requested:
            raise WorkerCancelled from None
        raise
    return {"slept": payload["seconds"]}


@runner.handler("demo.crash", version="v1", payload_version="v1")
def crash(_: object) -> None:
    """Leave open what was done: a person must look."""
    raise RuntimeError("nobody knows how far this went")


if __name__ == "__main__":
    raise SystemExit(runner.main())

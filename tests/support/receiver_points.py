"""The receiver with a fault point, as a process: `python -m tests.support.receiver_points POINT`.

hold-after-commit  a store that has committed returns never
gate               a store waits, before its transaction, for the file $GATE/<event id>
stranger           a demo on whose queue another program cancels a task first
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from orbit.protocol.http_v1 import SubmitTask
from orbit.protocol.values import new_id
from orbit.runtime.logs import configure_logging, get_logger
from receiver.cli import run_consume, run_demo
from receiver.demo import Demo
from receiver.policy import CALL_S
from receiver.settings import load, load_consume
from receiver.store import Store

if TYPE_CHECKING:
    from orbit.protocol.event import Event
    from receiver.outcome import Applied

_log = get_logger("tests.point")


class HoldAfterCommit(Store):
    """Says that the event is committed, and goes no further."""

    async def apply(self, event: Event, *, budget_s: float = CALL_S) -> Applied:
        applied = await super().apply(event, budget_s=budget_s)
        _log.info("held after commit", event_id=event.event_id, applied=applied.applied)
        await asyncio.Event().wait()
        return applied


class Gated(Store):
    """Says that it has an event, and waits for its gate before the transaction."""

    async def apply(self, event: Event, *, budget_s: float = CALL_S) -> Applied:
        gate = Path(os.environ["GATE"], event.event_id)
        _log.info("at the gate", event_id=event.event_id)
        while not gate.exists():
            await asyncio.sleep(0.02)
        return await super().apply(event, budget_s=budget_s)


class WithStranger(Demo):
    """Another program's task on the demo's queue is cancelled before the demo's own."""

    async def submit_and_cancel(self) -> str:
        task = SubmitTask(
            queue_id=self._queue_id,
            handler="another.program",
            handler_version="v1",
            payload_version="v1",
            payload=msgspec.Raw(b"{}"),
        )
        accepted = await self._client.submit_task(new_id(), task)
        await self._client.cancel_task(accepted.task.task_id)
        return await super().submit_and_cancel()


def main() -> None:
    """Run the point that the command line names."""
    configure_logging()
    match sys.argv[1]:
        case "hold-after-commit":
            run_consume(load_consume(os.environ), HoldAfterCommit)
        case "gate":
            run_consume(load_consume(os.environ), Gated)
        case "stranger":
            run_demo(load(os.environ), WithStranger)
        case other:
            raise SystemExit(f"no point {other}")


main()

"""The automatic worker: handlers in, attempts of tasks out.

    runner = WorkerRunner()

    @runner.handler("text.normalize", version="v1", payload_version="v1")
    def normalize(payload: dict[str, str]) -> dict[str, str]:
        return {"text": payload["text"].strip().upper()}

    raise SystemExit(runner.main())

`handlers` says what a handler is, `runner_pipeline` what happens to one attempt, `runner_link` talks; this module
starts and ends them. Sources: seeds safe-retry sections 3 to 5 and worker-sdk.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from orbit.protocol.limits import Limits
from orbit.protocol.worker_v1 import CAPACITY_MAX, Capability
from orbit.runtime.shutdown import shutdown_signals
from orbit.sdk.client import OrbitClient
from orbit.sdk.errors import InvalidConfiguration, OrbitError
from orbit.sdk.handlers import AnyHandler, RegisteredHandler, register
from orbit.sdk.runner_attempts import Attempts
from orbit.sdk.runner_counts import RunnerCounts
from orbit.sdk.runner_health import Health, Vitals
from orbit.sdk.runner_lag import LagWatch
from orbit.sdk.runner_link import Link
from orbit.sdk.supervise import Timing
from orbit.sdk.worker import WorkerConnection, new_worker_registration

DRAIN_S: Final = 25.0
"""How long a drain may take unless told otherwise: less than the thirty seconds that supervisors like to give."""

REPORT_RESERVE_S: Final = 2.0
"""The end of a drain, at most a fifth of it, that is kept for reports: handlers still running are told to stop."""

HARD_STOP_S: Final = 3.0
"""How long an end may take that does not wait for handlers."""

DRAIN_AFTER_FAILURE_S: Final = 5.0
"""How long running handlers may go on after the platform has refused this worker for good."""

_log = logging.getLogger(__name__)

H = TypeVar("H", bound=AnyHandler)


class WorkerRunner:
    """Runs the registered handlers, at most `concurrency` at a time, until `stop()`.

    Async handlers run in the event loop and must not block it; sync ones run in threads. Each attempt's handler is
    called at most once, after the platform has confirmed its start, and told to stop when its time or its lease is
    over. All methods belong to the event loop that runs `run()`, apart from `health` and `healthy`.
    """

    def __init__(self, *, concurrency: int = 4, limits: Limits | None = None, timing: Timing | None = None) -> None:
        """Raise InvalidConfiguration for a concurrency out of range; nothing is opened before `run()`.

        `limits` defaults to the client's; `timing` is the dial loop's.
        """
        if not 1 <= concurrency <= CAPACITY_MAX:
            raise InvalidConfiguration(f"concurrency: from 1 to {CAPACITY_MAX}")
        self._concurrency = concurrency
        self._limits = limits
        self._timing = timing or Timing()
        self._handlers: dict[Capability, RegisteredHandler] = {}
        self._attempts: Attempts | None = None
        self._vitals = Vitals(limits or Limits())
        self._drain_until: float | None = None  # on the loop's clock
        self._drained = False
        self._begun = False
        self._ended = asyncio.Event()

    def handler(self, handler: str, *, version: str, payload_version: str) -> Callable[[H], H]:
        """Register the decorated function, which stays as it is, for tasks of this handler and these versions.

        The function takes `(payload)` or `(payload, context)`. An annotation of `payload` - a dataclass, a TypedDict, a
        msgspec.Struct - is what the JSON is read into; without one it gets dicts, lists, strings and numbers, and with
        msgspec.Raw the JSON text, numbers as they were written. Raises InvalidConfiguration, which says what to change.
        """

        def decorate(function: H) -> H:
            registered = register(function, handler, version, payload_version)
            if registered.capability in self._handlers:
                raise InvalidConfiguration(
                    f"handler {handler}: version {version} with payload version {payload_version} is registered already"
                )
            if self._begun:
                raise InvalidConfiguration(f"handler {handler}: register it before the runner is started")
            self._handlers[registered.capability] = registered
            return function

        return decorate

    @property
    def counts(self) -> RunnerCounts:
        """A snapshot of what became of the attempts so far; exact at every moment."""
        return RunnerCounts() if self._attempts is None else self._attempts.counts

    @property
    def health(self) -> Health:
        """Whether the worker can do its work now, and why not; from any thread."""
        return self._vitals.judge()

    @property
    def healthy(self) -> bool:
        """Whether the worker can do its work now; `health.reasons` says why not."""
        return self.health.healthy

    @property
    def closing_line(self) -> str:
        """What `main` prints at the end; `worker_drained` is false when anything was left open."""
        counts = self.counts
        drained = self._drained and counts.started == counts.confirmed and counts.running == 0
        return (
            f"worker_drained={str(drained).lower()} started={counts.started} confirmed={counts.confirmed}"
            f" running={counts.running}"
        )

    async def until(self, condition: Callable[[RunnerCounts], bool]) -> RunnerCounts:
        """Wait until the counts satisfy `condition` and return them; after `run()` was called. Cancelling is safe."""
        attempts = self._require()
        await attempts.changes.until(lambda: condition(attempts.counts))
        return attempts.counts

    async def stop(self, drain_s: float = DRAIN_S) -> None:
        """Drain within `drain_s` seconds and wait until `run()` is done.

        Takes nothing more and starts nothing more; lets running handlers go on, and tells them to stop shortly before
        the end; reports every started attempt and waits for the answers. What was assigned and not started runs out by
        its lease. A second call can only shorten the drain. Not to be awaited by a handler.
        """
        self._shorten(drain_s)
        if self._begun:
            await self._ended.wait()

    async def halt(self) -> None:
        """End within three seconds: tell the handlers to stop, report what they leave as UNKNOWN; as `stop`."""
        if self._attempts is not None:
            self._attempts.stop()
        await self.stop(HARD_STOP_S)

    async def run(self, client: OrbitClient) -> RunnerCounts:
        """Work until `stop()` or `halt()`; once only. Returns the final counts.

        Raises InvalidConfiguration without a handler; and HTTPError, WorkerError or WorkerProtocolError when the
        platform refuses for good, after the running handlers were given five seconds. Everything else is waited out.
        Cancelling is safe: handlers are told to stop, nothing more is reported, no task is left but that of a handler
        that does not let itself be cancelled.
        """
        if self._begun:
            raise RuntimeError("a WorkerRunner runs once")
        if not self._handlers:
            raise InvalidConfiguration("register a handler before the runner is started")
        limits = self._limits or client.limits
        registration = new_worker_registration(
            client.credentials.queue_id,
            self._concurrency,
            self._handlers,
            cancellation_notifications=True,
            concurrency_keys=True,
        )

        async def dial() -> WorkerConnection:
            return await client.dial_worker(registration)

        self._begun = True
        self._vitals = Vitals(limits)
        self._vitals.begun()
        attempts = self._attempts = Attempts(self._handlers.values(), self._concurrency, limits)
        link = Link(dial, attempts, attempts.changes, limits=limits, timing=self._timing, vitals=self._vitals)
        attempts.use(link)
        watch = LagWatch()
        watch.start()
        talking = asyncio.create_task(link.run(), name="orbit-runner-link")
        talking.add_done_callback(lambda _: attempts.changes.notify())
        try:
            await attempts.changes.until(
                lambda: self._drain_until is not None or talking.done() or attempts.defect is not None
            )
            await self._drain(attempts, link, talking)
        finally:
            self._drained = link.drained
            try:
                await attempts.close()
                talking.cancel()
                await asyncio.wait([talking])
            finally:
                watch.stop()
                self._vitals.ended("it has ended")
                self._ended.set()
        failure = attempts.defect or (None if talking.cancelled() else talking.exception())
        if failure is not None:
            raise failure
        return self.counts

    async def serve(self, client: OrbitClient, *, drain_s: float = DRAIN_S) -> RunnerCounts:
        """`run` until SIGTERM or SIGINT: the first one drains, the second one halts. In the main thread."""
        running = asyncio.create_task(self.run(client), name="orbit-runner")
        with shutdown_signals() as shutdown:
            asked = [
                asyncio.create_task(shutdown.drain.wait(), name="orbit-runner-drain-signal"),
                asyncio.create_task(shutdown.hard.wait(), name="orbit-runner-halt-signal"),
            ]
            try:
                await asyncio.wait([running, asked[0]], return_when=asyncio.FIRST_COMPLETED)
                if shutdown.drain.is_set():
                    _log.info("worker: %s: draining, %.0f s at most", shutdown.first, drain_s)
                    self._shorten(drain_s)
                    await asyncio.wait([running, asked[1]], return_when=asyncio.FIRST_COMPLETED)
                if shutdown.hard.is_set():
                    _log.warning("worker: a second signal: ending without waiting for handlers")
                    await self.halt()
                return await running
            finally:
                for task in (running, *asked):
                    task.cancel()
                await asyncio.wait([running, *asked])

    def main(self, variables: Mapping[str, str] | None = None, *, drain_s: float = DRAIN_S) -> int:
        """Be the whole program: client from ORBIT_URL and ORBIT_CREDENTIALS_FILE, signals, logs on stderr.

        Prints the closing line on stdout and returns the exit code: 0 after a drain that left nothing open, 1
        otherwise, 2 when a setting is wrong.
        """
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        try:
            return asyncio.run(self._main(os.environ if variables is None else variables, drain_s))
        except InvalidConfiguration as error:
            print(error, file=sys.stderr)  # noqa: T201 - a program's own output
            return 2

    async def _main(self, variables: Mapping[str, str], drain_s: float) -> int:
        failed = False
        async with OrbitClient.from_environment(variables, limits=self._limits) as client:
            try:
                await self.serve(client, drain_s=drain_s)
            except InvalidConfiguration:
                raise
            except OrbitError as error:
                _log.error("worker: %s: %s", type(error).__name__, error)
                failed = True
        print(self.closing_line, flush=True)  # noqa: T201 - a program's own output
        return 1 if failed or "worker_drained=false" in self.closing_line else 0

    def _require(self) -> Attempts:
        if self._attempts is None:
            raise RuntimeError("the runner has not been started")
        return self._attempts

    def _shorten(self, drain_s: float) -> None:
        until = asyncio.get_running_loop().time() + max(0.0, drain_s)
        self._drain_until = until if self._drain_until is None else min(until, self._drain_until)
        if self._attempts is not None:
            self._attempts.drain()

    async def _drain(self, attempts: Attempts, link: Link, talking: asyncio.Task[None]) -> None:
        begun = asyncio.get_running_loop().time()
        if self._drain_until is None:
            self._drain_until = begun + DRAIN_AFTER_FAILURE_S
        attempts.drain()

        def handlers_until() -> float:
            assert self._drain_until is not None
            return self._drain_until - min(REPORT_RESERVE_S, (self._drain_until - begun) / 5)

        await attempts.changes.until(lambda: attempts.over, handlers_until)
        attempts.stop()
        await attempts.changes.until(
            lambda: talking.done() or (attempts.settled and link.drained), lambda: self._drain_until
        )

"""A platform of the tests' own: nodes in this process or in one of their own, and credentials that nobody else has."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from orbit.mysql.pool import LanePool
from orbit.mysql.times import DEFAULT_TIMES, LaneTimes
from orbit.protocol.http_v1 import EventType
from orbit.protocol.limits import Limits
from orbit.protocol.values import new_id
from orbit.server.app import create_app
from orbit.server.bootstrap import bootstrap
from orbit.server.parts import Platform
from orbit.server.serve import listener, server
from orbit.server.wake import Wake

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from typing import Self

    from starlette.applications import Starlette

    from orbit.mysql.dsn import DSN

ROOT = Path(__file__).parents[2]
START_S = 60.0
"""A process that starts is slow on a busy machine, and how slow is no test's matter."""
STOP_S = 15.0


@dataclass(frozen=True, slots=True)
class Node:
    """A node in this process: its URL, and its parts to look at."""

    base_url: str
    platform: Platform
    app: Starlette


@asynccontextmanager
async def running_node(
    dsn: DSN, *, limits: Limits | None = None, lanes: int = 6, times: LaneTimes = DEFAULT_TIMES
) -> AsyncIterator[Node]:
    """Run a node over a real socket on a free port of 127.0.0.1 while inside."""
    platform = Platform(pool=LanePool(dsn, lanes, times, name="test"), wake=Wake(), limits=limits or Limits())
    app = create_app(platform)
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    node = server(app, platform.limits, url.set_result)
    serving = asyncio.create_task(node.serve(sockets=[listener("127.0.0.1", 0)]), name="test-node")
    try:
        async with asyncio.timeout(START_S):
            await asyncio.wait((asyncio.ensure_future(url), serving), return_when=asyncio.FIRST_COMPLETED)
        assert url.done(), "the node did not start"
        yield Node(url.result(), platform, app)
    finally:
        platform.draining.set()
        node.should_exit = True
        await serving
        await platform.pool.close()


@pytest.fixture(scope="session")
async def node(platform_dsn: DSN) -> AsyncIterator[Node]:
    """A node in this process over the session's platform database; who would disturb it runs one of its own."""
    async with running_node(platform_dsn) as running:
        yield running


async def fresh_credentials(dsn: DSN, **given: Any) -> dict[str, Any]:
    """Bootstrap a credential with all permissions there are on names nobody else has."""
    names: dict[str, Any] = {
        "application": new_id(),
        "namespace": new_id(),
        "environment": "test",
        "queue": "work",
        "event_access": True,
        "worker_access": True,
        "queue_access": True,
        "task_access": True,
    }
    return await asyncio.to_thread(bootstrap, dsn, **(names | given))


@pytest.fixture
async def credentials(platform_dsn: DSN) -> dict[str, Any]:
    """The content of a credentials file on names of this test's own."""
    return await fresh_credentials(platform_dsn)


class Api:
    """The HTTP interface as one credential sees it, through plain httpx; every answer comes back as it is."""

    def __init__(self, base_url: str, credentials: dict[str, Any]) -> None:
        self.queue_id: str = credentials["queue_id"]
        self.http = httpx.AsyncClient(
            base_url=base_url,
            headers={"Authorization": f"Bearer {credentials['token']}"},
            trust_env=False,
            timeout=30,
            limits=httpx.Limits(max_connections=64),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    def task(self, **given: Any) -> dict[str, Any]:
        """The least that a submit may hold, and `given`."""
        return {
            "queue_id": self.queue_id,
            "handler": "text.normalize",
            "handler_version": "v1",
            "payload_version": "v1",
            "payload": {"text": "  a  "},
        } | given

    async def submit(self, key: str | None = None, **given: Any) -> httpx.Response:
        """POST /v1/tasks, with a new key unless one is given."""
        return await self.http.post("/v1/tasks", json=self.task(**given), headers=_keyed(key))

    async def submit_raw(self, content: bytes, key: str | None = None) -> httpx.Response:
        """POST /v1/tasks with these bytes as JSON."""
        headers = {**_keyed(key), "Content-Type": "application/json"}
        return await self.http.post("/v1/tasks", content=content, headers=headers)

    async def cancel(self, task_id: str) -> httpx.Response:
        """POST /v1/tasks/{task_id}/cancel."""
        return await self.http.post(f"/v1/tasks/{task_id}/cancel", json={})

    async def subscribe(self, key: str | None = None, **given: Any) -> httpx.Response:
        """POST /v1/subscriptions for task.cancelled, or as given."""
        content = {"queue_id": self.queue_id, "event_types": [EventType.CANCELLED.value]} | given
        return await self.http.post("/v1/subscriptions", json=content, headers=_keyed(key))


def _keyed(key: str | None) -> dict[str, str]:
    return {"Idempotency-Key": new_id() if key is None else key}


@pytest.fixture
async def api(node: Node, credentials: dict[str, Any]) -> AsyncIterator[Api]:
    """This test's credential on this test's node."""
    async with Api(node.base_url, credentials) as client:
        yield client


class NodeProcess:
    """A real `orbit serve`. `start` returns when it listens; leaving the context kills what is still there."""

    def __init__(self, dsn: DSN, *, lanes: int = 4, program: Sequence[str] = (str(ROOT / "cmd" / "orbit"),)) -> None:
        """`program` is what Python runs, for a node with other limits."""
        self._dsn = dsn
        self._program = program
        self._lanes = lanes
        self._process: asyncio.subprocess.Process | None = None
        self._log: asyncio.Task[None] | None = None
        self.base_url = ""
        self.log: list[str] = []
        """What it wrote on stderr, line by line."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None and self._process.returncode is None:
            await self.kill()

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start it, on the port it had before if it ran before, and wait until it listens."""
        listen = self.base_url.removeprefix("http://") or "127.0.0.1:0"
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *(*self._program, "serve", "--listen", listen, "--lanes", str(self._lanes)),
            env={**os.environ, "PYTHONPATH": str(ROOT), "ORBIT_MYSQL_DSN": self._dsn.render()},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        self._log = asyncio.create_task(self._collect(self._process), name="node-log")
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(START_S):
                line = (await self._process.stdout.readline()).decode()
            assert line.startswith("orbit_listening="), f"the node did not start: {self.log}"
        except BaseException:
            # Whoever enters the context with this has nothing to leave.
            await self.kill()
            raise
        self.base_url = line.removeprefix("orbit_listening=").strip()

    async def stop(self) -> int:
        """SIGTERM; the exit code."""
        return await self.end(signal.SIGTERM)

    async def kill(self) -> int:
        """SIGKILL, waited for."""
        return await self.end(signal.SIGKILL)

    def send(self, which: signal.Signals) -> None:
        """Send a signal and do not wait."""
        assert self._process is not None
        self._process.send_signal(which)

    async def end(self, which: signal.Signals) -> int:
        """Send a signal and wait for the end; the exit code, negative for a signal's own."""
        assert self._process is not None
        assert self._log is not None
        with suppress(ProcessLookupError):
            self._process.send_signal(which)
        async with asyncio.timeout(STOP_S):
            code = await self._process.wait()
            await self._log
        return code

    async def _collect(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            self.log.append(line.decode())

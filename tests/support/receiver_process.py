"""The receiver as a process of its own, and what the platform's database says about its deliveries."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orbit.protocol.values import new_id
from orbit.sandbox.server import admin_cursor

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Mapping
    from typing import Self

    from orbit.mysql.dsn import DSN
    from tests.support.platform import Api

ROOT = Path(__file__).parents[2]
WAIT_S = 30.0


class ReceiverProcess:
    """One run of `receiver`, or of a fault point; leaving the context kills what is still there.

    `log` holds the JSON lines of stderr, `noise` its other lines.
    """

    def __init__(self, *command: str, variables: Mapping[str, str], module: str = "receiver.cli") -> None:
        self._command = (sys.executable, "-m", module, *command)
        self._variables = dict(variables)
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self.log: list[dict[str, Any]] = []
        self.noise: list[str] = []

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], **self._variables},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        self._reading = asyncio.create_task(self._read(self._process), name="receiver-log")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None
        assert self._reading is not None
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()
        await self._reading

    def send(self, which: signal.Signals) -> None:
        """Send a signal and do not wait."""
        assert self._process is not None
        self._process.send_signal(which)

    async def ended(self, within_s: float = WAIT_S) -> tuple[int, str]:
        """Wait for its end: exit code, stdout."""
        assert self._process is not None
        assert self._process.stdout is not None
        async with asyncio.timeout(within_s):
            out = await self._process.stdout.read()
            code = await self._process.wait()
        assert self._reading is not None
        await self._reading
        return code, out.decode()

    async def logged(
        self, predicate: Callable[[dict[str, Any]], bool], *, count: int = 1, within_s: float = WAIT_S
    ) -> list[dict[str, Any]]:
        """Wait for so many lines of the log, past lines included, and return those there are."""
        try:
            async with asyncio.timeout(within_s):
                while len(found := [line for line in self.log if predicate(line)]) < count:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"{count} lines did not come: {self.log} {self.noise}") from None
        return found

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        async for raw in process.stderr:
            line = raw.decode().rstrip("\n")
            try:
                self.log.append(json.loads(line))
            except ValueError:
                self.noise.append(line)
            self._changed.set()


def outcome(word: str) -> Callable[[dict[str, Any]], bool]:
    """Lines that end an event with this outcome."""
    return lambda line: line["message"] == f"event {word}"


def message(text: str) -> Callable[[dict[str, Any]], bool]:
    """Lines with this message."""
    return lambda line: line["message"] == text


def receiver_variables(
    directory: Path, *, url: str, credentials: Mapping[str, Any], dsn: DSN, subscription_id: str | None = None
) -> dict[str, str]:
    """The environment of a receiver, with the credentials in a file as bootstrap writes it."""
    path = directory / f"{new_id()}.json"
    path.touch(0o600)
    path.write_text(json.dumps(credentials))
    variables = {"ORBIT_URL": url, "ORBIT_CREDENTIALS_FILE": str(path), "ORBIT_RECEIVER_DSN": dsn.render()}
    return variables if subscription_id is None else {**variables, "ORBIT_SUBSCRIPTION_ID": subscription_id}


async def subscribe(api: Api, **given: Any) -> str:
    """Subscribe to cancellations, or as given; the subscription's id."""
    answer = await api.subscribe(**given)
    assert answer.status_code == 201, answer.text
    subscription_id: str = answer.json()["subscription_id"]
    return subscription_id


async def cancelled_task(api: Api) -> str:
    """Submit a task and cancel it; its id."""
    submitted = await api.submit()
    assert submitted.status_code == 201, submitted.text
    task_id: str = submitted.json()["task"]["task_id"]
    cancelled = await api.cancel(task_id)
    assert cancelled.status_code == 200, cancelled.text
    return task_id


def platform_rows(platform: DSN, text: str, *values: Any) -> list[dict[str, Any]]:
    """Rows of a query over the platform's own database."""
    with admin_cursor(platform) as cursor:
        cursor.execute(text, values or None)
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def deliveries(platform: DSN, subscription_id: str) -> list[dict[str, Any]]:
    """A subscription's deliveries with their events' tasks, in the order of their making."""
    return platform_rows(
        platform,
        "SELECT d.*, e.task_id FROM deliveries AS d JOIN events AS e USING (event_id)"
        " WHERE d.subscription_id = %s ORDER BY d.created_at, d.delivery_id",
        subscription_id,
    )


async def until_deliveries(
    platform: DSN,
    subscription_id: str,
    condition: Callable[[list[dict[str, Any]]], bool],
    *,
    within_s: float = WAIT_S,
) -> list[dict[str, Any]]:
    """Wait until the platform's rows are as asked, and return them."""
    rows: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(within_s):
            while not condition(rows := deliveries(platform, subscription_id)):
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"the deliveries did not become as asked: {rows}") from None
    return rows

"""The example worker behind a relay: it asks again for what it was not told, calls its function once, and says so."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from examples import worker_protocol
from orbit.protocol.limits import Limits
from orbit.sdk import OrbitClient, WorkerDisconnected
from tests.support.clients import saved
from tests.support.rows import rows
from toxiproxy import CutAtFrame, DropFrame, End, FrameRelay

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tests.support.platform import Node
    from toxiproxy.faults import Fault

IMPATIENT = Limits(control_s=0.5)
LINE = re.compile(r'task=[0-9a-f]{32} final_state=SUCCEEDED attempts=1 result=\{"text":"HELLO ORBIT"\}\n')
RECEIPTS = "SELECT COUNT(*), COUNT(DISTINCT message_id) FROM worker_receipts JOIN attempts USING (attempt_id) WHERE"
RECEIPTS += " attempts.queue_id = :queue_id"


@pytest.fixture
async def relay(node: Node) -> AsyncIterator[FrameRelay]:
    address = urlsplit(node.base_url)
    assert address.hostname is not None
    assert address.port is not None
    async with FrameRelay(address.hostname, address.port) as running:
        yield running


@pytest.fixture
async def client(relay: FrameRelay, credentials: dict[str, Any], tmp_path: Path) -> AsyncIterator[OrbitClient]:
    content = saved(tmp_path / "credentials.json", credentials)
    async with OrbitClient(relay.url, content, limits=IMPATIENT) as opened:
        yield opened


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the function was called with, each time."""
    seen: list[Any] = []
    work = worker_protocol.normalize

    def counted(payload: Any) -> dict[str, str]:
        seen.append(payload)
        return work(payload)

    monkeypatch.setattr(worker_protocol, "normalize", counted)
    monkeypatch.setattr(worker_protocol, "PAUSE_S", 0.01)
    return seen


@dataclass
class Said:
    """What the program wrote; in-process nodes write their logs to the same streams."""

    out: str = ""
    err: str = ""

    def print(self, line: str, *, file: object = None) -> None:
        if file is sys.stderr:
            self.err += f"{line}\n"
        else:
            self.out += f"{line}\n"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    written = Said()
    monkeypatch.setattr(worker_protocol, "print", written.print, raising=False)
    return written


def sent(relay: FrameRelay, name: str) -> int:
    """How many frames of this type the worker sent."""
    return sum(entry.point.name == "CLIENT_FRAME" and entry.command == name for entry in relay.journal)


BREAKS: dict[str, Callable[[str], Fault]] = {
    "request-dropped": lambda name: DropFrame(name, "client"),
    "cut-before-the-request": lambda name: CutAtFrame(name, "client"),
    "cut-after-the-request": lambda name: CutAtFrame(name, "client", when="after", end=End.RST),
    "answer-dropped": lambda name: DropFrame("ack", answers=name),
    "cut-before-the-answer": lambda name: CutAtFrame("ack", answers=name),
}


@pytest.mark.parametrize("position", BREAKS)
@pytest.mark.parametrize("name", ["task.start", "task.finish"])
async def test_one_break_costs_a_dial_and_no_second_call(
    node: Node,
    relay: FrameRelay,
    client: OrbitClient,
    calls: list[Any],
    said: Said,
    name: str,
    position: str,
) -> None:
    armed = relay.arm(BREAKS[position](name))
    assert await worker_protocol.run(client) == 0
    assert armed.fired
    assert sent(relay, name) == 2
    assert sent(relay, "worker.hello") == 2
    assert calls == [{"text": "  Hello Orbit  "}]
    assert LINE.fullmatch(said.out), said.out
    assert "asking again over a new connection" in said.err
    assert await rows(node, RECEIPTS, queue_id=client.credentials.queue_id) == [(2, 2)]


async def test_two_breaks_of_each_are_survived(
    node: Node, relay: FrameRelay, client: OrbitClient, calls: list[Any], said: Said
) -> None:
    faults: list[Fault] = [
        DropFrame("ack", answers="task.start"),
        CutAtFrame("ack", answers="task.start"),
        CutAtFrame("ack", answers="task.finish"),
        DropFrame("ack", answers="task.finish"),
    ]
    armed = [relay.arm(fault) for fault in faults]
    assert await worker_protocol.run(client) == 0
    assert all(one.fired for one in armed)
    assert len(calls) == 1
    assert (sent(relay, "task.start"), sent(relay, "task.finish"), sent(relay, "worker.hello")) == (3, 3, 5)
    assert LINE.fullmatch(said.out)
    assert await rows(node, RECEIPTS, queue_id=client.credentials.queue_id) == [(2, 2)]


@pytest.mark.parametrize(("name", "called"), [("task.start", 0), ("task.finish", 1)])
async def test_a_third_break_leaves_the_outcome_unknown_and_is_no_success(
    relay: FrameRelay,
    client: OrbitClient,
    calls: list[Any],
    said: Said,
    name: str,
    called: int,
) -> None:
    armed = [relay.arm(CutAtFrame("ack", answers=name)) for _ in range(3)]
    with pytest.raises(WorkerDisconnected):
        await worker_protocol.run(client)
    assert all(one.fired for one in armed)
    assert (sent(relay, name), len(calls)) == (3, called)
    assert said.out == ""


async def test_what_the_whole_program_says_then(
    relay: FrameRelay,
    client: OrbitClient,
    calls: list[Any],
    said: Said,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("ORBIT_URL", relay.url)
    monkeypatch.setenv("ORBIT_CREDENTIALS_FILE", str(tmp_path / "credentials.json"))
    armed = [relay.arm(CutAtFrame("ack", answers="task.finish")) for _ in range(3)]
    assert await worker_protocol.main() == 1
    assert all(one.fired for one in armed)
    assert (said.out, len(calls)) == ("", 1)
    assert said.err.endswith("worker_protocol: the connection was lost; look at the task before you decide anything\n")
    assert client.credentials.token.reveal() not in said.err

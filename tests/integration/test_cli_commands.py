"""`orbit task`, `orbit queue` and `orbit sub` as processes against a real platform."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from orbit.protocol.attempt_v1 import Outcome
from tests.support.platform import fresh_credentials
from tests.support.reviews import Floor
from tests.support.rows import rows
from tests.support.worker_client import report

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orbit.mysql.dsn import DSN
    from tests.support.platform import Api, Node

ROOT = Path(__file__).parents[2]
DEADLINE_S = 30.0


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    def lines(self) -> list[dict[str, str]]:
        """The lines of a command that succeeded, split at blanks: documents hold none here."""
        assert self.code == 0, self
        return [dict(part.split("=", 1) for part in one.split(" ")) for one in self.out.splitlines()]

    def objects(self) -> list[dict[str, Any]]:
        """The objects of a command with --json that succeeded."""
        assert self.code == 0, self
        return [json.loads(one) for one in self.out.splitlines()]


class Shell:
    """Runs `orbit` with the settings of one credential."""

    def __init__(self, directory: Path, url: str, credentials: dict[str, Any]) -> None:
        path = directory / "credentials.json"
        path.touch(0o600)
        path.write_text(json.dumps(credentials))
        self._variables = {"ORBIT_URL": url, "ORBIT_CREDENTIALS_FILE": str(path)}

    async def __call__(self, *arguments: str, stdin: str = "") -> Done:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *(str(ROOT / "cmd" / "orbit"), *arguments),
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **self._variables},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(DEADLINE_S):
            out, err = await process.communicate(stdin.encode())
        assert process.returncode is not None
        return Done(process.returncode, out.decode(), err.decode())


@pytest.fixture
def orbit(tmp_path: Path, node: Node, credentials: dict[str, Any]) -> Shell:
    return Shell(tmp_path, node.base_url, credentials)


@pytest.fixture
async def floor(node: Node, api: Api) -> AsyncIterator[Floor]:
    """A queue and one worker."""
    async with Floor.open(node.base_url, api) as one:
        yield one


async def test_a_task_is_shown_without_its_contents_unless_they_are_asked_for(orbit: Shell, floor: Floor) -> None:
    one = await floor.running(payload={"wholly": "secret"})
    await floor.worker.finish(report(one.attempt, result='{"also":"secret"}'))

    [shown], [asked] = (
        (await orbit("task", "show", one.task.task_id)).lines(),
        (await orbit("task", "show", one.task.task_id, "--show-result", "--show-payload")).lines(),
    )

    assert (shown["task_id"], shown["state"], shown["version"]) == (one.task.task_id, "SUCCEEDED", "4")
    assert "secret" not in str(shown)
    assert asked == shown | {"payload": '{"wholly":"secret"}', "result": '{"also":"secret"}'}
    [as_json] = (await orbit("task", "show", one.task.task_id, "--json")).objects()
    task = await floor.task(one.task.task_id)
    assert as_json == {name: value for name, value in task.items() if name not in {"payload", "result"}}


async def test_a_person_finds_a_review_looks_at_it_and_resolves_it(orbit: Shell, floor: Floor) -> None:
    one = await floor.under_review()
    task_id = one.task.task_id

    [listed] = (await orbit("task", "list")).lines()
    resolved = await orbit(
        *("task", "resolve", task_id, "--outcome", "succeeded"),
        *("--evidence", "seen in the ledger", "--result", '{"n":1.10}', "--key", "my-key"),
    )
    again = await orbit(
        *("task", "resolve", task_id, "--outcome", "SUCCEEDED", "--key", "my-key"),
        *("--evidence-file", "-", "--result", '{"n":1.10}'),
        stdin='"seen in the ledger"',
    )
    other = await orbit("task", "resolve", task_id, "--outcome", "cancelled", "--evidence", "no")
    history = await orbit("task", "history", task_id)

    assert (listed["task_id"], listed["state"], listed["error_code"]) == (task_id, "NEEDS_REVIEW", "TEST")
    assert (resolved.lines()[0]["state"], resolved.lines()[0]["version"]) == ("SUCCEEDED", "5")
    assert (resolved.err, again.code, again.out) == ("", 0, resolved.out)
    assert (other.code, other.out) == (1, "")
    assert "error: HTTP 409 STATE_CONFLICT request_id=" in other.err
    assert "only one under review can be resolved" in other.err
    assert (await orbit("task", "list")).lines() == []
    assert [(one["record"], one.get("event_type"), one.get("action")) for one in history.lines()] == [
        ("attempt", None, None),
        ("event", "task.submitted", None),
        ("event", "task.leased", None),
        ("event", "task.started", None),
        ("event", "task.needs_review", None),
        ("event", "task.succeeded", None),
        ("audit", None, "task.resolve"),
    ]
    assert "ledger" not in history.out
    assert "1.10" not in history.out
    asked = await orbit("task", "history", task_id, "--show-result", "--show-evidence", "--json")
    assert '"n":1.10' in asked.out
    assert asked.objects()[-1]["evidence"] == "seen in the ledger"


async def test_history_shows_every_attempt_and_what_was_said_too_late(orbit: Shell, floor: Floor) -> None:
    one = await floor.under_review()
    await floor.worker.finish(report(one.attempt, result='"late"'))

    found = (await orbit("task", "history", one.task.task_id)).lines()

    attempt, late = found[0], found[1]
    assert (attempt["record"], attempt["epoch"], attempt["outcome"]) == ("attempt", "1", "UNKNOWN")
    assert attempt["decision"] == "RECONCILIATION_REQUIRED"
    assert (late["record"], late["attempt_id"], late["outcome"]) == (
        "evidence",
        one.attempt.attempt_id,
        "SUCCEEDED",
    )
    assert "late" not in str(found).replace("late_", "")


async def test_a_task_is_done_again_and_a_running_one_is_cancelled(orbit: Shell, floor: Floor) -> None:
    old_id = (await floor.under_review()).task.task_id
    retried = await orbit("task", "retry", old_id)
    [new] = retried.lines()
    key = retried.err.removeprefix("operation key ").strip()
    one = await floor.assigned(new["task_id"])
    await floor.worker.start(one.attempt)

    [cancelled] = (await orbit("task", "cancel", new["task_id"])).lines()
    told = await floor.worker.cancellation()
    await floor.worker.finish(report(one.attempt, Outcome.CANCELLED))

    assert new["retry_of"] == old_id
    assert (cancelled["state"], told.task_id) == ("RUNNING", new["task_id"])
    assert "cancel_requested_at" in cancelled
    [again] = (await orbit("task", "retry", old_id, "--key", key)).lines()
    assert (again["task_id"], again["state"]) == (new["task_id"], "CANCELLED")


async def test_a_list_goes_on_where_it_ended(orbit: Shell, floor: Floor) -> None:
    ids = [(await floor.under_review()).task.task_id for _ in range(3)]

    first = await orbit("task", "list", "--limit", "2")
    place = first.err.removeprefix("there are more: --after ").strip()
    second = await orbit("task", "list", "--limit", "2", "--after", place)

    assert [one["task_id"] for one in first.lines() + second.lines()] == ids
    assert second.err == ""


async def test_a_queue_is_shown_paused_limited_and_resumed(orbit: Shell, api: Api) -> None:
    [listed], [shown] = (await orbit("queue", "list")).lines(), (await orbit("queue", "show", api.queue_id)).lines()
    [paused] = (await orbit("queue", "pause")).lines()
    [limited] = (await orbit("queue", "limits", "--concurrency-limit", "3", "--json")).objects()
    [resumed] = (await orbit("queue", "resume", api.queue_id)).lines()
    [free] = (await orbit("queue", "limits", "--none")).lines()
    stranger = await orbit("queue", "show", "f" * 32)

    assert listed == shown
    assert (shown["queue_id"], shown["paused"]) == (api.queue_id, "false")
    assert paused["paused"] == "true"
    assert (limited["paused"], limited["concurrency_limit"]) == (True, 3)
    assert (resumed["paused"], resumed["concurrency_limit"]) == ("false", "3")
    assert free == shown
    assert (stranger.code, stranger.out, stranger.err) == (1, "", "error: the credentials are not for that queue\n")


async def test_a_subscription_is_shown_paused_and_resumed_and_its_deliveries_get_more_attempts(
    orbit: Shell, api: Api, node: Node
) -> None:
    subscription_id = (await api.subscribe(event_types=["task.submitted"])).json()["subscription_id"]
    for _ in range(3):
        await api.submit()
    await rows(
        node, "UPDATE deliveries SET state = 'EXPIRED', attempts = 10 WHERE subscription_id = :id", id=subscription_id
    )

    [listed], [shown] = (
        (await orbit("sub", "list")).lines(),
        (await orbit("sub", "show", subscription_id)).lines(),
    )
    [paused] = (await orbit("sub", "pause", subscription_id)).lines()
    [resumed] = (await orbit("sub", "resume", subscription_id)).lines()
    first = await orbit("sub", "deliveries", subscription_id, "--limit", "2")
    [granted] = (await orbit("sub", "grant", first.lines()[0]["delivery_id"], "--attempts", "5")).lines()

    assert (listed, listed["enabled"], listed["event_types"]) == (shown, "true", '["task.submitted"]')
    assert (paused["enabled"], resumed["enabled"]) == ("false", "true")
    assert [(one["state"], one["attempts"]) for one in first.lines()] == [("EXPIRED", "10")] * 2
    assert first.err.startswith("there are more: --after ")
    assert (granted["state"], granted["attempt_budget"]) == ("PENDING", "15")


async def test_what_the_credential_may_not_do_is_said_and_the_rest_is_shown(
    tmp_path: Path, node: Node, platform_dsn: DSN, credentials: dict[str, Any], floor: Floor
) -> None:
    names = {name: credentials[name] for name in ("application", "namespace", "environment", "queue")}
    limited = Shell(tmp_path, node.base_url, await fresh_credentials(platform_dsn, **names, task_access=False))
    task_id = (await floor.under_review()).task.task_id

    history = await limited("task", "history", task_id)
    retried = await limited("task", "retry", task_id, "--key", "k")
    unknown = await limited("task", "show", "f" * 32)

    assert [one["record"] for one in history.lines()] == ["attempt"] + ["event"] * 4
    assert history.err == "what was done by hand is left out: the credential lacks tasks:manage\n"
    assert (retried.code, retried.out) == (1, "")
    assert "HTTP 403 PERMISSION_DENIED" in retried.err
    assert (unknown.code, unknown.out) == (1, "")
    assert "HTTP 404 NOT_FOUND" in unknown.err


async def test_a_past_that_cannot_be_read_to_its_end_is_an_error(tmp_path: Path, credentials: dict[str, Any]) -> None:
    """Attempts and events are there, and then the platform's database is not."""
    answers = {
        "attempts": (200, {"attempts": []}),
        "events": (200, {"events": [{"event_type": "task.submitted"}]}),
        "audit": (503, {"code": "UNAVAILABLE", "message": "try again", "request_id": "f" * 32}),
    }

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readline()).split(b" ")[1].decode()
        while (await reader.readline()).strip():
            pass
        status, content = answers[path.rpartition("/")[2]]
        body = json.dumps(content).encode()
        writer.write(f"HTTP/1.1 {status} x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        orbit = Shell(tmp_path, f"http://127.0.0.1:{port}", credentials)
        history = await orbit("task", "history", "f" * 32)

    assert (history.code, history.out) == (1, "record=event event_type=task.submitted\n")
    assert history.err == f"error: HTTP 503 UNAVAILABLE request_id={'f' * 32}: try again\n"


async def test_an_answer_that_is_lost_names_the_key_that_settles_it(
    tmp_path: Path, credentials: dict[str, Any]
) -> None:
    """The request arrives, and the connection ends before the answer."""
    swallowed = asyncio.Event()

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (await reader.readline()).strip():
            pass
        swallowed.set()
        writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        orbit = Shell(tmp_path, f"http://127.0.0.1:{port}", credentials)
        lost = await orbit("task", "retry", "f" * 32, "--key", "my-key")

    assert swallowed.is_set()
    assert (lost.code, lost.out) == (1, "")
    assert lost.err.endswith("it may have been done: the same command with --key my-key settles that\n")

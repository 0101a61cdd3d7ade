"""The examples of the runner as processes on a real platform: their lines, and their ends."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import Raw

from orbit.protocol.history_v1 import AttemptPage
from orbit.sdk import Credentials, OrbitClient
from tests.support.clients import saved

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.platform import Node

ROOT = Path(__file__).parents[2]
WAIT_S = 60.0


@pytest.fixture
def environ(tmp_path: Path, node: Node, credentials: dict[str, Any]) -> dict[str, str]:
    """What the examples need of the environment."""
    saved(tmp_path / "credentials.json", credentials)
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "ORBIT_URL": node.base_url,
        "ORBIT_CREDENTIALS_FILE": str(tmp_path / "credentials.json"),
    }


@asynccontextmanager
async def started(environ: dict[str, str], name: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start an example; leaving the context kills it if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(ROOT / "examples" / name), *arguments),
        env=environ,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def run(environ: dict[str, str], name: str, *arguments: str) -> tuple[int | None, str, str]:
    """Run an example to its end: exit code, stdout, stderr."""
    async with started(environ, name, *arguments) as process, asyncio.timeout(WAIT_S):
        out, err = await process.communicate()
        return process.returncode, out.decode(), err.decode()


async def test_the_retry_prints_the_two_lines_of_the_seed_and_the_platform_says_the_same(
    environ: dict[str, str],
) -> None:
    code, out, err = await run(environ, "retry.py")
    assert code == 0, err
    lines = re.fullmatch(
        r'task=([0-9a-f]{32}) state=SUCCEEDED attempts=2 first_retryable=true result=\{"text":"SAFE RETRY"\}\n'
        r"worker_drained=true started=2 confirmed=2 running=0\n",
        out,
    )
    assert lines is not None, out
    credentials = Credentials.load(environ["ORBIT_CREDENTIALS_FILE"])
    async with OrbitClient(environ["ORBIT_URL"], credentials) as client:
        page: AttemptPage = await client.list_attempts(lines[1])
    first, second = page.attempts
    assert (first.outcome, first.error_code, first.retryable) == ("FAILED", "TEMPORARY_REJECTION", True)
    assert (first.decision, first.result) == ("RETRYABLE_FAILURE", Raw(b'{"reason_ref":"diagnostics/temporary"}'))
    assert (second.outcome, second.retryable) == ("SUCCEEDED", False)
    assert first.instance_id == second.instance_id


async def test_worker_and_producer_work_together_and_a_repeated_key_makes_no_second_task(
    environ: dict[str, str],
) -> None:
    async with started(environ, "worker.py") as worker:
        first = await run(environ, "producer.py", "order-4711", "  hello  ")
        second = await run(environ, "producer.py", "order-4711", "  hello  ")
        worker.send_signal(signal.SIGTERM)
        async with asyncio.timeout(WAIT_S):
            out, err = await worker.communicate()
    line = r'task=([0-9a-f]{32}) created=(true|false) state=SUCCEEDED attempts=1 result=\{"text":"HELLO"\}\n'
    one, two = re.fullmatch(line, first[1]), re.fullmatch(line, second[1])
    assert one is not None, first
    assert two is not None, second
    assert (one[2], two[2]) == ("true", "false")
    assert one[1] == two[1]
    assert (worker.returncode, out.decode()) == (0, "worker_drained=true started=1 confirmed=1 running=0\n"), err
    token = Credentials.load(environ["ORBIT_CREDENTIALS_FILE"]).token.reveal()
    assert token not in err.decode()
    assert "hello" not in err.decode()


async def test_a_worker_that_is_interrupted_ends_with_its_line(environ: dict[str, str]) -> None:
    async with started(environ, "worker.py") as worker:
        assert worker.stderr is not None
        async with asyncio.timeout(WAIT_S):
            while b"connected" not in await worker.stderr.readline():
                pass
            worker.send_signal(signal.SIGINT)
            out, _ = await worker.communicate()
    assert (worker.returncode, out) == (0, b"worker_drained=true started=0 confirmed=0 running=0\n")


async def test_a_worker_without_settings_says_which_and_exits_with_2(environ: dict[str, str]) -> None:
    del environ["ORBIT_URL"]
    assert await run(environ, "worker.py") == (2, "", "ORBIT_URL: is not set\n")


async def test_a_worker_with_a_wrong_token_ends(environ: dict[str, str]) -> None:
    environ["ORBIT_TOKEN"] = "tok_" + "0" * 32
    code, out, err = await run(environ, "worker.py")
    assert (code, out) == (1, "worker_drained=false started=0 confirmed=0 running=0\n")
    assert "HTTP 401 UNAUTHENTICATED" in err


def test_the_worker_has_ten_lines() -> None:
    lines = (ROOT / "examples" / "worker.py").read_text().splitlines()
    code = [line for line in lines if line.strip()]
    assert len(code) <= 10

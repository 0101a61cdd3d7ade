"""Commands whose stdout takes nothing: they fail with one line that says so, and never with 0 or a traceback."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.receiver import bench
from tests.support.receiver_process import receiver_variables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orbit.mysql.dsn import DSN
    from tests.support.mysql import ReceiverDSNs
    from tests.support.platform import Node

ROOT = Path(__file__).parents[2]
WAYS = pytest.mark.parametrize(
    ("redirection", "says"),
    [
        (">/dev/full", "error: standard output cannot be written: No space left on device"),
        (">&-", "error: standard output is closed"),
    ],
    ids=["full", "closed"],
)


async def run(redirection: str, *command: str, variables: Mapping[str, str]) -> tuple[int, list[str]]:
    """Run a program of the product with its stdout redirected by a shell: exit code, lines of stderr."""
    done = await asyncio.to_thread(
        subprocess.run,
        ["sh", "-c", f'exec "$0" "$@" {redirection}', sys.executable, *command],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **variables},
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr.splitlines()


@WAYS
async def test_init_says_that_it_could_not_print(receiver_dsns: ReceiverDSNs, redirection: str, says: str) -> None:
    variables = {"ORBIT_RECEIVER_DSN": receiver_dsns.init.render()}
    assert await run(redirection, "cmd/receiver", "init", variables=variables) == (1, [says])


@WAYS
async def test_the_demo_says_that_it_could_not_print(
    tmp_path: Path,
    receiver_dsns: ReceiverDSNs,
    node: Node,
    credentials: dict[str, Any],
    redirection: str,
    says: str,
) -> None:
    async with bench(receiver_dsns) as receiver:
        variables = receiver_variables(tmp_path, url=node.base_url, credentials=credentials, dsn=receiver_dsns.run)
        code, lines = await run(redirection, "cmd/receiver", "demo", "--log-level", "ERROR", variables=variables)
        assert (code, lines) == (1, [says])
        assert receiver.view()["applied_events"] == 1


@WAYS
async def test_bootstrap_says_that_it_could_not_print(
    tmp_path: Path, platform_dsn: DSN, redirection: str, says: str
) -> None:
    output = tmp_path / "credentials.json"
    names = ("--application", "shop", "--namespace", "output", "--environment", "test", "--queue", "orders")
    command = ("cmd/orbit-admin", "bootstrap", *names, "--output", str(output))
    assert await run(redirection, *command, variables={"ORBIT_MYSQL_DSN": platform_dsn.render()}) == (1, [says])
    assert output.exists()

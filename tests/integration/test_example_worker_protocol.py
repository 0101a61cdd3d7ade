"""`examples/worker_protocol.py` as a process on a real platform: its one line, and its result in a receiver's view."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.platform import fresh_credentials
from tests.support.receiver import bench
from tests.support.receiver_process import ReceiverProcess, message, outcome, receiver_variables, subscribe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orbit.mysql.dsn import DSN
    from tests.support.mysql import ReceiverDSNs
    from tests.support.platform import Api, Node

ROOT = Path(__file__).parents[2]
LINE = re.compile(r'task=([0-9a-f]{32}) final_state=SUCCEEDED attempts=1 result=\{"text":"HELLO ORBIT"\}\n')
WAIT_S = 60.0


async def run_example(variables: Mapping[str, str]) -> tuple[int, str, str]:
    """Run it to its end: exit code, stdout, stderr."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "examples" / "worker_protocol.py"),
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **variables},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(WAIT_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_its_result_reaches_the_view_of_a_running_receiver(
    tmp_path: Path, node: Node, credentials: dict[str, Any], api: Api, receiver_dsns: ReceiverDSNs
) -> None:
    subscription_id = await subscribe(api, event_types=["task.succeeded"])
    async with bench(receiver_dsns) as receiver:
        variables = receiver_variables(
            tmp_path,
            url=node.base_url,
            credentials=credentials,
            dsn=receiver.dsns.run,
            subscription_id=subscription_id,
        )
        async with ReceiverProcess("consume", variables=variables) as process:
            await process.logged(message("consuming"))
            code, out, err = await run_example(variables)
            assert (code, err) == (0, "")
            line = LINE.fullmatch(out)
            assert line is not None, out
            await process.logged(outcome("applied"))
            process.send(signal.SIGTERM)
            assert await process.ended() == (0, "")
        view = receiver.view()
        assert (view["task_id"], view["state"]) == (line[1], "SUCCEEDED")
        assert (view["result"], view["applied_events"]) == ('{"text":"HELLO ORBIT"}', 1)
        # Submitted, leased, started, succeeded: four versions.
        assert view["task_version"] == 4
    task = (await api.http.get(f"/v1/tasks/{line[1]}")).json()
    assert task["payload"] == {"text": "  Hello Orbit  "}


async def test_each_run_has_a_handler_of_its_own(
    tmp_path: Path, node: Node, credentials: dict[str, Any], api: Api, receiver_dsns: ReceiverDSNs
) -> None:
    left_behind = (await api.submit()).json()["task"]["task_id"]
    variables = receiver_variables(tmp_path, url=node.base_url, credentials=credentials, dsn=receiver_dsns.run)
    first, second = await asyncio.gather(run_example(variables), run_example(variables))
    lines = [LINE.fullmatch(first[1]), LINE.fullmatch(second[1])]
    assert all(lines), (first, second)
    assert len({line[1] for line in lines if line is not None} | {left_behind}) == 3
    assert (await api.http.get(f"/v1/tasks/{left_behind}")).json()["state"] == "WAITING"


async def test_without_permission_it_says_so_and_exits_with_1(
    tmp_path: Path, node: Node, platform_dsn: DSN, receiver_dsns: ReceiverDSNs
) -> None:
    producer = await fresh_credentials(platform_dsn, worker_access=False)
    variables = receiver_variables(tmp_path, url=node.base_url, credentials=producer, dsn=receiver_dsns.run)
    code, out, err = await run_example(variables)
    assert (code, out) == (1, "")
    assert "HTTP 403 PERMISSION_DENIED" in err
    assert producer["token"] not in err
    assert "Traceback" not in err

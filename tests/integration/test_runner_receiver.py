"""From a submission to a receiver's view, through a runner that tries again once: `examples/retry.py` as it stands."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orbit.sdk import Credentials, OrbitClient
from tests.integration.test_runner_examples import run
from tests.support.receiver import bench
from tests.support.receiver_process import ReceiverProcess, message, outcome, receiver_variables, subscribe

if TYPE_CHECKING:
    from tests.support.mysql import ReceiverDSNs
    from tests.support.platform import Api, Node

ROOT = Path(__file__).parents[2]


async def test_a_task_that_was_retried_once_is_applied_once(
    tmp_path: Path, node: Node, credentials: dict[str, Any], api: Api, receiver_dsns: ReceiverDSNs
) -> None:
    subscription_id = await subscribe(api, event_types=["task.succeeded", "task.failed"])
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
            environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **variables}
            code, out, err = await run(environ, "retry.py")
            assert code == 0, err
            found = re.match(r"task=([0-9a-f]{32}) state=SUCCEEDED attempts=2 first_retryable=true ", out)
            assert found is not None, out
            await process.logged(outcome("applied"))
            process.send(signal.SIGTERM)
            assert await process.ended() == (0, "")
        view = receiver.view()
        assert (view["task_id"], view["state"], view["result"]) == (found[1], "SUCCEEDED", '{"text":"SAFE RETRY"}')
        # Submitted, leased, started, requeued, leased, started, succeeded.
        assert (view["task_version"], view["applied_events"]) == (7, 1)
    async with OrbitClient(node.base_url, Credentials.load(variables["ORBIT_CREDENTIALS_FILE"])) as client:
        events = (await client.list_events(found[1])).events
        history = [json.loads(bytes(event))["event_type"] for event in events]
    assert history == [
        "task.submitted",
        "task.leased",
        "task.started",
        "task.requeued",
        "task.leased",
        "task.started",
        "task.succeeded",
    ]

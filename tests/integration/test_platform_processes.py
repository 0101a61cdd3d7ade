"""The platform as an operator meets it: `orbit-admin`, `orbit serve`, signals, exit codes, and nodes side by side."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from orbit.sandbox import PLATFORM_PRIVILEGES
from orbit.sandbox.server import admin_cursor
from tests.support.platform import ROOT, Api, NodeProcess, fresh_credentials

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from orbit.mysql.dsn import DSN
    from orbit.sandbox import MySQLServer
    from tests.support.platform import Node

TIMEOUT_S = 60
NAMES = ("--application", "shop", "--namespace", "default", "--environment", "development", "--queue", "orders")


def run(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run one of the commands to its end, in an environment that says nothing but `environment`."""
    return subprocess.run(
        [sys.executable, ROOT / "cmd" / program, *arguments],
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.fixture
def fresh_dsn(mysql: MySQLServer) -> Iterator[DSN]:
    """An empty database for the platform."""
    made = mysql.create_database("admin")
    yield mysql.create_account(made, PLATFORM_PRIVILEGES)
    mysql.drop_database(made)


def test_an_empty_database_becomes_a_platform_in_two_commands(fresh_dsn: DSN, tmp_path: Path) -> None:
    dsn_file = tmp_path / "dsn"
    dsn_file.write_text(fresh_dsn.render() + "\n")
    dsn_file.chmod(0o600)
    output = tmp_path / "credentials.json"

    migrated = run("orbit-admin", "migrate", ORBIT_MYSQL_DSN_FILE=str(dsn_file))
    made = run(
        "orbit-admin", "bootstrap", *NAMES, "--event-access", f"--output={output}", ORBIT_MYSQL_DSN_FILE=str(dsn_file)
    )

    assert (migrated.returncode, migrated.stdout, migrated.stderr) == (0, "orbit_schema_migrated=true\n", "")
    assert (made.returncode, made.stdout, made.stderr) == (0, f"orbit_credentials={output}\n", "")
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    content = json.loads(output.read_text())
    assert content == {
        "application": "shop",
        "namespace": "default",
        "environment": "development",
        "queue": "orders",
        "queue_id": content["queue_id"],
        "token": content["token"],
        "permissions": [
            "tasks:submit",
            "tasks:read",
            "tasks:cancel",
            "events:read",
            "events:consume",
            "events:manage",
        ],
    }


def test_a_second_bootstrap_adds_a_credential_and_overwrites_nothing(platform_dsn: DSN, tmp_path: Path) -> None:
    environment = {"ORBIT_MYSQL_DSN": platform_dsn.render()}
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    run("orbit-admin", "bootstrap", *NAMES, "--output", str(first), **environment)
    before = first.read_text()

    again = run("orbit-admin", "bootstrap", *NAMES, "--output", str(first), **environment)
    other = run("orbit-admin", "bootstrap", *NAMES, "--output", str(second), **environment)

    assert again.returncode == 2
    assert "not overwritten" in again.stderr
    assert first.read_text() == before
    assert other.returncode == 0
    old, new = json.loads(before), json.loads(second.read_text())
    assert new["queue_id"] == old["queue_id"]
    assert new["token"] != old["token"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--application", "a b", *NAMES[2:]), 2, "--application: must be"),
        (NAMES[2:], 2, "--application"),
        ((*NAMES, "--output", "/nowhere/a.json"), 1, "/nowhere/a.json cannot be written"),
    ],
    ids=["a wrong name", "no name", "no folder"],
)
def test_a_bootstrap_that_fails_leaves_no_file(
    platform_dsn: DSN, tmp_path: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    output = tmp_path / "a.json"

    failed = run("orbit-admin", "bootstrap", "--output", str(output), *arguments, ORBIT_MYSQL_DSN=platform_dsn.render())

    assert failed.returncode == code
    assert says in failed.stderr
    assert not output.exists()


def test_a_database_without_tables_is_refused_by_name_of_the_remedy(fresh_dsn: DSN, tmp_path: Path) -> None:
    output = tmp_path / "a.json"
    environment = {"ORBIT_MYSQL_DSN": fresh_dsn.render()}

    made = run("orbit-admin", "bootstrap", *NAMES, "--output", str(output), **environment)
    served = run("orbit", "serve", "--listen", "127.0.0.1:0", **environment)

    for failed in (made, served):
        assert failed.returncode == 1
        assert "run orbit-admin migrate" in failed.stderr
        assert failed.stdout == ""
    assert not output.exists()


@pytest.mark.parametrize(
    ("arguments", "environment", "says"),
    [
        ((), {}, "ORBIT_MYSQL_DSN"),
        ((), {"ORBIT_MYSQL_DSN": "mysql://user:my-secret@host"}, "ORBIT_MYSQL_DSN: names no database"),
        (("--listen", "8080"), {"ORBIT_MYSQL_DSN": "mysql://user@host/db"}, "--listen"),
        (("--lanes", "0"), {"ORBIT_MYSQL_DSN": "mysql://user@host/db"}, "--lanes"),
    ],
    ids=["no DSN", "no database", "no port", "no lanes"],
)
def test_a_node_that_is_not_told_all_it_needs_exits_with_2(
    arguments: tuple[str, ...], environment: dict[str, str], says: str
) -> None:
    failed = run("orbit", "serve", *arguments, **environment)

    assert failed.returncode == 2
    assert says in failed.stderr
    assert "my-secret" not in failed.stderr


def test_a_database_that_is_not_there_is_said_without_its_password() -> None:
    dsn = "mysql://user:my-secret@127.0.0.1:1/db"

    served = run("orbit", "serve", "--listen", "127.0.0.1:0", ORBIT_MYSQL_DSN=dsn)
    migrated = run("orbit-admin", "migrate", ORBIT_MYSQL_DSN=dsn)

    for failed in (served, migrated):
        assert failed.returncode == 1
        assert "2003" in failed.stderr
        assert "my-secret" not in failed.stderr + failed.stdout


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
async def test_a_node_that_is_told_to_stop_answers_what_it_has_and_exits_with_0(
    platform_dsn: DSN, which: signal.Signals
) -> None:
    credentials = await fresh_credentials(platform_dsn)
    async with NodeProcess(platform_dsn) as process, Api(process.base_url, credentials) as api:
        task_id = (await api.submit()).json()["task"]["task_id"]
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def slow_body() -> Any:
            yield b"{"
            begun.set()
            await go_on.wait()
            yield b"}"

        slow = asyncio.create_task(
            api.http.post(
                f"/v1/tasks/{task_id}/cancel", content=slow_body(), headers={"Content-Type": "application/json"}
            )
        )
        await asyncio.wait_for(begun.wait(), 10)
        ending = asyncio.create_task(process.end(which))
        await refuses_connections(process.base_url)
        go_on.set()

        assert (await slow).json()["state"] == "CANCELLED"
        assert await ending == 0


async def test_the_log_of_a_node_holds_no_token_no_payload_and_no_password(platform_dsn: DSN) -> None:
    credentials = await fresh_credentials(platform_dsn)
    async with NodeProcess(platform_dsn) as process:
        async with Api(process.base_url, credentials) as api:
            await api.submit(payload={"canary": "my-secret-payload"})
            await api.submit(handler="my-secret-payload !")
            await api.http.get("/v1/queues", headers={"Authorization": "Bearer my-secret-payload"})
        await process.end(signal.SIGTERM)

    log = "".join(process.log)
    assert log.count('"operation": "submitTask"') == 2
    for secret in (credentials["token"], "my-secret-payload", platform_dsn.password):
        assert secret not in log
    for line in process.log:
        json.loads(line)


async def test_a_node_whose_port_is_taken_exits_with_1(platform_dsn: DSN, node: Node) -> None:
    address = node.base_url.removeprefix("http://")

    failed = await asyncio.to_thread(run, "orbit", "serve", "--listen", address, ORBIT_MYSQL_DSN=platform_dsn.render())

    assert failed.returncode == 1
    assert failed.stdout == ""
    assert f"cannot listen on {address}" in failed.stderr


async def test_two_nodes_are_one_platform_and_one_may_die(platform_dsn: DSN) -> None:
    credentials = await fresh_credentials(platform_dsn)
    async with NodeProcess(platform_dsn) as first, NodeProcess(platform_dsn) as second:
        async with Api(first.base_url, credentials) as one, Api(second.base_url, credentials) as other:
            answers = await asyncio.gather(*((one, other)[number % 2].submit("order-1") for number in range(30)))
            assert sorted(answer.status_code for answer in answers) == [200] * 29 + [201]
            task_id = answers[0].json()["task"]["task_id"]

            assert await first.end(signal.SIGKILL) == -signal.SIGKILL

            assert (await other.cancel(task_id)).json()["state"] == "CANCELLED"
        await first.start()
        async with Api(first.base_url, credentials) as one:
            assert (await one.submit("order-1")).json()["task"]["state"] == "CANCELLED"


async def refuses_connections(base_url: str) -> None:
    """Return once nobody listens at the URL any more."""
    host, port = base_url.removeprefix("http://").split(":")
    async with asyncio.timeout(10):
        while True:
            try:
                _, writer = await asyncio.open_connection(host, int(port))
            except ConnectionError:
                return
            writer.close()
            await writer.wait_closed()


def test_a_server_that_may_lose_commits_is_refused_before_any_table(own_mysql: MySQLServer) -> None:
    made = own_mysql.create_database("unfit")
    dsn = own_mysql.create_account(made, PLATFORM_PRIVILEGES)
    with admin_cursor(own_mysql.admin) as cursor:
        cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 2")

    migrated = run("orbit-admin", "migrate", ORBIT_MYSQL_DSN=dsn.render())
    served = run("orbit", "serve", "--listen", "127.0.0.1:0", ORBIT_MYSQL_DSN=dsn.render())

    for failed in (migrated, served):
        assert failed.returncode == 1
        assert "innodb_flush_log_at_trx_commit is 2, needed: 1" in failed.stderr
    with admin_cursor(made.admin) as cursor:
        assert cursor.execute("SHOW TABLES") == 0

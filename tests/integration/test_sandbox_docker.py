"""Way 2, with a real Docker engine where there is one or one can be started; otherwise the test says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.docker_engine import Engine, NoEngine, docker_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

# In a process of its own: testcontainers reads its settings when it is imported.
FAULTS = """
import json, os, socket, sys
from orbit.sandbox import mysql_server
from orbit.sandbox.server import admin_cursor

def ask(statement):
    with admin_cursor(server.admin) as cursor:
        cursor.execute(statement)
        return cursor.fetchone()

def refused():
    with socket.socket() as probe:
        if probe.connect_ex(server.admin.hosts[0]) != 0:
            return True
        # The engine's proxy may accept for a container that is gone, and then closes.
        probe.settimeout(10)
        try:
            return probe.recv(1) == b""
        except ConnectionError:
            return True

with mysql_server(os.environ, own=True, on_progress=lambda text: print(text, file=sys.stderr)) as server:
    seen = {"way": server.way, "version": server.version, "address": server.admin.hosts[0]}
    seen["visible"] = os.path.exists(f"/proc/{server.pid}")
    uuid = ask("SELECT @@server_uuid")
    with admin_cursor(server.admin) as cursor:
        cursor.execute("CREATE DATABASE kept")
        cursor.execute("CREATE TABLE kept.t (n INT PRIMARY KEY)")
        cursor.execute("INSERT INTO kept.t VALUES (7)")
    server.control.kill()
    seen["pid_after_kill"] = server.pid
    seen["refused_after_kill"] = refused()
    server.control.start()
    seen["row"] = ask("SELECT n FROM kept.t")[0]
    server.control.pause()
    with socket.create_connection(server.admin.hosts[0]) as dark:
        dark.settimeout(0.5)
        try:
            dark.recv(1)
        except TimeoutError:
            seen["dark"] = True
        server.control.resume()
        dark.settimeout(30)
        seen["greeting"] = dark.recv(4)[3]
    server.control.stop()
    seen["refused_after_stop"] = refused()
    server.control.start()
    seen["same_server"] = ask("SELECT @@server_uuid") == uuid
seen["refused_after_close"] = refused()
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    try:
        with docker_engine() as found:
            yield found
    except NoEngine as reason:
        # The one reported exception to "no skips": the outcome is in the summary, with its reason.
        pytest.skip(f"NOT TESTED HERE: way 2 to MySQL, a container by Docker: {reason}")


@pytest.mark.timeout(600)
def test_a_container_is_a_server_like_any_other_and_is_removed(engine: Engine) -> None:
    before = engine.containers()

    answer = subprocess.run(
        [sys.executable, "-c", FAULTS],
        env={**os.environ, **engine.environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )

    assert answer.returncode == 0, answer.stderr
    seen = json.loads(answer.stdout)
    host, port = seen.pop("address")
    version = seen.pop("version")
    assert seen == {
        "way": f"way 2, a container by the Docker engine: MySQL {version} at {host}:{port}",
        "visible": True,
        "pid_after_kill": None,
        "refused_after_kill": True,
        "row": 7,
        "dark": True,
        "greeting": 0,
        "refused_after_stop": True,
        "same_server": True,
        "refused_after_close": True,
    }, answer.stderr
    assert engine.containers() == before

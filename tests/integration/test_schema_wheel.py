"""The wheel carries both schemas, and `orbit.protocol.schemas` finds them there."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

from orbit.protocol.schemas import events_schema, worker_schema

ROOT = Path(__file__).parents[2]
PRINT_DIGESTS = """
import hashlib, orbit.protocol.schemas as s
print(s.__file__)
print(hashlib.sha256(s.worker_schema()).hexdigest(), hashlib.sha256(s.events_schema()).hexdigest())
"""


def test_an_installed_platform_finds_the_schemas_of_the_checkout(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=60,
    )
    (wheel,) = tmp_path.glob("*.whl")
    found = subprocess.run(
        [sys.executable, "-c", PRINT_DIGESTS],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(wheel)},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    where, digests = found.stdout.splitlines()
    assert where.startswith(str(wheel))
    files = [ROOT / "orbit" / "protocol" / name for name in ("worker.schema.json", "events.schema.json")]
    assert digests.split(" ") == [hashlib.sha256(one.read_bytes()).hexdigest() for one in files]


def test_each_schema_is_that_of_its_subprotocol() -> None:
    assert json.loads(worker_schema())["title"] == "pulse.worker.v1"
    assert json.loads(events_schema())["title"] == "pulse.events.v1"

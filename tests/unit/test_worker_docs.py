"""The worker's section of docs/sdk.md speaks of what there is."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import orbit.sdk
from orbit.protocol.limits import Limits
from orbit.sdk import WorkerConnection

SECTION = (
    (Path(__file__).parents[2] / "docs" / "sdk.md").read_text().split("## The worker\n", 1)[1].split("\n## ", 1)[0]
)


def test_its_table_has_every_public_method_and_no_other() -> None:
    rows = [line.split("|")[1] for line in SECTION.splitlines() if line.startswith("| `") and "|" in line[2:]]
    named = {name for row in rows for name in re.findall(r"`(\w+)", row) if name.islower()}
    public = {name for name, _ in inspect.getmembers(WorkerConnection) if not name.startswith("_")}
    assert named == public - {"dial"}


def test_its_program_compiles_and_uses_what_there_is() -> None:
    program = SECTION.split("```python\n", 1)[1].split("```", 1)[0].replace(", ...)", ")")
    tree = ast.parse(f"async def main():\n{re.sub('(?m)^', '    ', program)}")
    called = {
        node.func.attr for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    assert called - {"dial_worker", "timeout_at", "dumps", "execution_deadline"} <= set(dir(WorkerConnection))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id[0].isupper()}
    assert names == {"Capability", "Finish", "Outcome"} <= set(orbit.sdk.__all__)


def test_its_numbers_are_the_limits() -> None:
    limits = Limits()
    assert (limits.handshake_s, limits.control_s, limits.session_s, limits.read_idle_s) == (8.0, 10.0, 45.0, 60.0)
    assert (limits.control_in_flight, limits.assignment_buffer, limits.cancellation_buffer) == (32, 8, 32)
    assert (limits.frame_bytes, limits.result_bytes, limits.content_depth) == (512 * 1024, 256 * 1024, 28)
    assert limits.local_margin_s == 0.25
    text = " ".join(SECTION.split())
    for said in (
        "take at most 8 s together",
        "takes at most 10 s from waiting",
        "32 may be in flight",
        "The ninth assignment or the 33rd cancellation",
        "the 45 s session",
        "60 s of silence",
        "at most 512 KiB",
        "at most 256 KiB of JSON, not null, 28 levels deep",
        "less 250 ms",
    ):
        assert said in text, said

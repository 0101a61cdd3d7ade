"""The wheel carries schema.sql, and the receiver finds it there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_an_installed_receiver_finds_the_schema_of_the_checkout(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=60,
    )
    (wheel,) = tmp_path.glob("*.whl")
    found = subprocess.run(
        [sys.executable, "-c", "import receiver.schema as s; print(s.__file__); print(s.schema_sql(), end='')"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(wheel)},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    where, text = found.stdout.split("\n", 1)
    assert where.startswith(str(wheel))
    assert text == (ROOT / "schema.sql").read_text(encoding="utf-8")

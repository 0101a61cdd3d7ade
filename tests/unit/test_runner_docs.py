"""The runner's part of docs/sdk.md speaks of what there is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import orbit.sdk
import orbit.sdk.testing
from orbit.sdk.runner import HARD_STOP_S, REPORT_RESERVE_S
from orbit.sdk.runner_attempts import CANCEL_S
from orbit.sdk.runner_counts import RunnerCounts
from orbit.sdk.runner_outcome import Code
from orbit.sdk.runner_rules import RENEW_SHARE

PAGE = (Path(__file__).parents[2] / "docs" / "sdk.md").read_text().split("## The runner", 1)[1]
PROGRAMS = [ast.parse(block.split("```", 1)[0]) for block in PAGE.split("```python\n")[1:]]


def test_its_programs_import_what_is_public() -> None:
    imported = {
        (node.module, alias.name)
        for program in PROGRAMS
        for node in ast.walk(program)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    public = {("orbit.sdk", name) for name in orbit.sdk.__all__}
    public |= {("orbit.sdk.testing", name) for name in orbit.sdk.testing.__all__}
    assert imported - public == {("dataclasses", "dataclass")}


def test_every_code_is_named() -> None:
    codes = set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", PAGE))
    assert {code.value for code in Code} <= codes


def test_every_count_has_its_place() -> None:
    sentence = PAGE.split("each attempt assigned is in", 1)[1].split(".", 1)[0]
    assert set(re.findall(r"`(\w+)`", sentence)) == set(RunnerCounts.__dataclass_fields__) - {
        "assigned",
        "evidence_only",
        "running",
        "reconnects",
    }


def test_the_numbers_it_gives_are_the_codes() -> None:
    assert (REPORT_RESERVE_S, HARD_STOP_S, 2 * CANCEL_S, RENEW_SHARE) == (2.0, 3.0, 2.0, 1 / 3)

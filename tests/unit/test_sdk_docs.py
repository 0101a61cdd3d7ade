"""docs/sdk.md speaks of what there is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import orbit.sdk
from orbit.sdk import errors
from orbit.sdk.book import FINISHED_REMEMBERED, ConsumerCounts
from orbit.sdk.consumer import START_RESERVE_S, START_RESERVE_SHARE, VERDICTS_RESERVE_S
from orbit.sdk.handling import CANCEL_S

PAGE = (Path(__file__).parents[2] / "docs" / "sdk.md").read_text()


def test_the_program_compiles_and_imports_public_names() -> None:
    program = ast.parse(PAGE.split("```python\n", 1)[1].split("```", 1)[0])
    imported = [
        alias.name
        for node in ast.walk(program)
        if isinstance(node, ast.ImportFrom) and node.module == "orbit.sdk"
        for alias in node.names
    ]
    assert imported == ["Delivery", "EventConsumer", "OrbitClient"]
    assert set(imported) <= set(orbit.sdk.__all__)


def test_every_error_it_names_exists_and_is_exported() -> None:
    tree = PAGE.split("OrbitError\n", 1)[1].split("```", 1)[0]
    named = set(re.findall(r"[├└]── (\w+)", tree))
    assert len(named) >= 11
    assert all(hasattr(errors, name) for name in named)
    assert named <= set(orbit.sdk.__all__)


def test_every_count_it_names_exists_and_none_is_missing() -> None:
    sentence = PAGE.split("each lease received is in exactly one of", 1)[1].split(".", 1)[0]
    assert set(re.findall(r"`(\w+)`", sentence)) == set(ConsumerCounts.__dataclass_fields__) - {
        "received",
        "reconnects",
    }


def test_the_numbers_it_gives_are_the_codes() -> None:
    assert (START_RESERVE_S, START_RESERVE_SHARE, VERDICTS_RESERVE_S, CANCEL_S) == (5.0, 0.2, 1.0, 1.0)
    assert f"{FINISHED_REMEMBERED:,}" in PAGE

"""Who writes what: the ledger alone makes tasks, events and deliveries, and alone moves a task's state.

Statements are found in the source: every call of `insert`, `update` or `delete`, and every SQL text that starts with
one of these words.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import orbit.server

ROOT = Path(orbit.server.__file__).parent
GUARDED = ("tasks", "events", "deliveries")
_TEXT = re.compile(
    r"\s*(INSERT|REPLACE|UPDATE|DELETE|TRUNCATE)\b.*?\b(tasks|events|deliveries)\b", re.IGNORECASE | re.DOTALL
)


def writes(source: Path) -> set[tuple[str, str]]:
    """(verb, table) of every statement of a module that writes a guarded table."""
    found: set[tuple[str, str]] = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Call):
            verb = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            named = [ast.unparse(argument).split(".")[-1] for argument in node.args[:1]]
            called_on = ast.unparse(node.func.value).split(".")[-1] if isinstance(node.func, ast.Attribute) else ""
            for table in (*named, called_on):
                if verb in {"insert", "update", "delete"} and table in GUARDED:
                    found.add((verb, table))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            match = _TEXT.match(node.value)
            if match:
                found.add((match[1].lower(), match[2].lower()))
    return found


def test_only_the_ledger_writes_tasks_events_and_new_deliveries() -> None:
    sources = [source for source in ROOT.rglob("*.py") if "migrations" not in source.parts]
    assert len(sources) > 20
    written = {str(source.relative_to(ROOT)): found for source in sources if (found := writes(source))}

    # Leasing, acknowledging and sweeping change deliveries that exist; they make none.
    assert written == {
        "ledger.py": {("insert", "tasks"), ("update", "tasks"), ("insert", "events"), ("insert", "deliveries")},
        "delivery_statements.py": {("update", "deliveries")},
    }


def test_the_search_finds_every_way_to_write(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    for line, expected in (
        ("insert(tasks)", ("insert", "tasks")),
        ("tables.events.insert()", ("insert", "events")),
        ("sa.update(tables.tasks).values(a=1)", ("update", "tasks")),
        ('text("  delete from `deliveries` where 1")', ("delete", "deliveries")),
        ('"INSERT INTO orbit.events VALUES (1)"', ("insert", "events")),
        ('"REPLACE tasks VALUES (1)"', ("replace", "tasks")),
    ):
        module.write_text(line)
        assert writes(module) == {expected}, line

"""What importing the SDK brings with it: one importer a library, no database driver, nothing of the platform."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SDK = ROOT / "orbit" / "sdk"

BLOCKED = """
import importlib.abc, sys
BLOCKED = {"aiomysql", "pymysql", "sqlalchemy", "alembic", "starlette", "uvicorn", "cryptography"}

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)
        return None

sys.meta_path.insert(0, Blocker())
for name in BLOCKED:
    assert name not in sys.modules
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_sdk_works_without_a_database_driver_and_without_the_platforms_libraries() -> None:
    done = run(
        BLOCKED
        + """
import orbit.sdk
from orbit.protocol.values import Secret
credentials = orbit.sdk.Credentials(queue_id="a" * 32, token=Secret("x" * 20))
client = orbit.sdk.OrbitClient("https://orbit.example", credentials)
async def handler(delivery): ...
orbit.sdk.EventConsumer(client, "b" * 32, handler)
assert not {"orbit.server", "orbit.mysql"} & set(sys.modules), sys.modules
print("ok")
"""
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_the_blocker_blocks() -> None:
    done = run(BLOCKED + "import aiomysql")
    assert done.returncode == 1
    assert "aiomysql is blocked" in done.stderr


def imports(path: Path) -> set[str]:
    """The names of all modules that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module)
    return found


@pytest.mark.parametrize(("library", "importer"), [("httpx", "http.py"), ("websockets", "channel.py")])
def test_one_module_imports_the_library(library: str, importer: str) -> None:
    users = {
        path.name for path in SDK.rglob("*.py") if any(name.partition(".")[0] == library for name in imports(path))
    }
    assert users == {importer}


def test_the_sdk_knows_neither_the_platform_nor_a_database() -> None:
    strangers = {
        (path.name, name)
        for path in SDK.rglob("*.py")
        for name in imports(path)
        if name.startswith(("orbit.server", "orbit.mysql", "orbit.sandbox", "receiver", "toxiproxy"))
        or name.partition(".")[0] in ("aiomysql", "pymysql", "sqlalchemy")
    }
    assert strangers == set()


def test_everything_public_is_exported_once() -> None:
    import orbit.sdk  # noqa: PLC0415 - the other tests look at files only

    assert sorted(orbit.sdk.__all__) == orbit.sdk.__all__
    assert all(hasattr(orbit.sdk, name) for name in orbit.sdk.__all__)

"""A real Orbit for the tests of workers and producers.

In the root `conftest.py`:

    pytest_plugins = ["orbit.sandbox.pytest_plugin"]

and in a test, with pytest-asyncio or whatever runs coroutines:

    async def test_my_worker(orbit_environ: dict[str, str]) -> None:
        async with OrbitClient.from_environment(orbit_environ) as client:
            ...

MySQL is the one of ORBIT_SANDBOX_MYSQL_DSN, or one that is started for the session. Tests share its queue: give each
test a handler name of its own.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orbit.sandbox.stack import Sandbox


@pytest.fixture(scope="session")
def orbit_sandbox() -> Iterator[Sandbox]:
    """One Orbit for the whole session: MySQL, a migrated platform, one serving node. Raises SandboxError."""
    # Only who asks for it pays for the server's libraries.
    from orbit.sandbox.stack import open_sandbox  # noqa: PLC0415 - see above

    with open_sandbox(os.environ) as sandbox:
        yield sandbox


@pytest.fixture
def orbit_environ(orbit_sandbox: Sandbox) -> dict[str, str]:
    """The variables of a client, for `OrbitClient.from_environment` or a process; the other ORBIT_ ones are gone."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("ORBIT_")}
    return others | orbit_sandbox.exports()

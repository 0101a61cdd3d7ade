"""A real MySQL and a real Orbit of one's own, for demos, tests and benchmarks. Linux only.

`mysql_server()` gives a server in the first of four ways that works (design section 3) and says which;
`open_sandbox()` adds a migrated and bootstrapped platform. Needs the `sandbox` extra.
"""

from __future__ import annotations

from orbit.sandbox.errors import NoMySQL, SandboxError
from orbit.sandbox.obtain import mysql_server
from orbit.sandbox.server import (
    PLATFORM_PRIVILEGES,
    RECEIVER_INIT_PRIVILEGES,
    RECEIVER_RUN_PRIVILEGES,
    Database,
    MySQLServer,
)
from orbit.sandbox.stack import Sandbox, open_sandbox

__all__ = [
    "PLATFORM_PRIVILEGES",
    "RECEIVER_INIT_PRIVILEGES",
    "RECEIVER_RUN_PRIVILEGES",
    "Database",
    "MySQLServer",
    "NoMySQL",
    "Sandbox",
    "SandboxError",
    "mysql_server",
    "open_sandbox",
]

"""Get a real MySQL server in the first way that works, and say which it was (design section 3)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from orbit.mysql.dsn import DSN
from orbit.sandbox.errors import NoMySQL
from orbit.sandbox.server import MySQLServer, connect_existing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DSN_VARIABLE = "ORBIT_SANDBOX_MYSQL_DSN"


def mysql_server(
    environ: Mapping[str, str] = os.environ, *, on_progress: Callable[[str], None] = lambda _: None
) -> MySQLServer:
    """Get a server to be used as a context manager; NoMySQL when no way works."""
    text = environ.get(DSN_VARIABLE)
    if not text:
        raise NoMySQL(f"set {DSN_VARIABLE}")
    server = connect_existing(
        DSN.parse(text, source=DSN_VARIABLE, require_database=False), way=f"way 1: {DSN_VARIABLE}"
    )
    on_progress(f"MySQL by {server.way}")
    return server

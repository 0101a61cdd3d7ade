"""Ports on loopback for servers of the sandbox."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_LOWEST = 10_000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 200


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nothing listens on, outside the range of outgoing connections.

    A port of the ephemeral range would be unsafe for a server that is stopped and started again: a client that keeps
    dialling the dead port may be given that very port as its own, and then connects to itself (simultaneous open,
    RFC 9293 section 3.5) and keeps the server from binding. OSError when no port is free.
    """
    highest = int(_EPHEMERAL.read_text().split()[0]) - 1
    if highest <= _LOWEST:
        highest = 65_535
    chooser = random.SystemRandom()
    for _ in range(_TRIES):
        port = chooser.randint(_LOWEST, highest)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise OSError(f"no free port between {_LOWEST} and {highest}")

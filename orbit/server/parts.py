"""What every part of one platform node is given: the database, the wake-up, the limits."""

from __future__ import annotations

import asyncio
import re
import secrets
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orbit.mysql.pool import LanePool
    from orbit.protocol.limits import Limits
    from orbit.server.wake import Wake

_HOST_MAX = 48


def _node_name() -> str:
    """The host's name, as far as a name of the protocol can hold it, and a random part: many nodes may share a host."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:_HOST_MAX].strip("._-")
    return f"{host or 'node'}-{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class Platform:
    """One node's parts. The node owns nothing else: whatever must outlive it is in the database.

    `node` is its name in events, attempts and audit lines, another one after each start. `draining` is set once, when
    the node has been told to stop: nothing new is to be taken from then on.
    """

    pool: LanePool
    wake: Wake
    limits: Limits
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    node: str = field(default_factory=_node_name)

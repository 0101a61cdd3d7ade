"""What every part of one platform node is given: the database, the wake-up, the limits."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orbit.mysql.pool import LanePool
    from orbit.protocol.limits import Limits
    from orbit.server.wake import Wake


@dataclass(frozen=True, slots=True)
class Platform:
    """One node's parts. The node owns nothing else: whatever must outlive it is in the database.

    `draining` is set once, when the node has been told to stop: nothing new is to be taken from then on.
    """

    pool: LanePool
    wake: Wake
    limits: Limits
    draining: asyncio.Event = field(default_factory=asyncio.Event)

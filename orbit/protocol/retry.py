"""How long a task waits before its next attempt: exponential, bounded, and the same for everyone who computes it."""

from __future__ import annotations

import hashlib


def retry_delay_ms(attempt_count: int, *, initial_delay_ms: int, max_delay_ms: int, attempt_id: str) -> int:
    """Return the milliseconds to wait after attempt number `attempt_count` (from 1), whose id is `attempt_id`.

    The ceiling doubles from `initial_delay_ms` up to `max_delay_ms`; the delay lies in its upper half, at a place that
    the attempt's id fixes: tasks spread out, and computing it again moves nothing. The exponent is bounded before it is
    used, so that a large count cannot grow a large number. Source: seed safe-retry section 3.
    """
    doublings = attempt_count - 1
    base = max_delay_ms
    if doublings < max_delay_ms.bit_length():
        base = min(initial_delay_ms << doublings, max_delay_ms)
    shortest = (base + 1) // 2
    place = int.from_bytes(hashlib.sha256(attempt_id.encode("ascii")).digest()[:8], "big")
    return shortest + place % (base - shortest + 1)

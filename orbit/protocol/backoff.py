"""How long to wait before dialling again."""

from __future__ import annotations

from typing import Final

BASE_S: Final = 0.2
CEILING_S: Final = 15.0
# 0.2 s doubled seven times is past the ceiling; a larger exponent would only overflow.
_DOUBLINGS_MAX: Final = 7


def reconnect_delay(attempt: int, jitter: float) -> float:
    """Return the seconds to wait before dial number `attempt` + 1 of an outage, `attempt` failures after its start.

    Full jitter: a share `jitter`, drawn by the caller from [0, 1), of a ceiling that is 0.2 s for attempt 0 and doubles
    to 15 s, so that clients that lost one server together do not come back together. The caller starts again at 0 after
    a welcome, not after a mere connect: a server that takes connections and then fails must not be hammered.
    """
    return jitter * min(CEILING_S, BASE_S * 2.0 ** min(max(attempt, 0), _DOUBLINGS_MAX))

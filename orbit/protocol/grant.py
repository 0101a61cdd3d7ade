"""From a lease on the database's clock to a deadline on this process's."""

from __future__ import annotations

from datetime import datetime


def local_deadline(called_at: float, lease_until: datetime, server_time: datetime, margin_s: float) -> float:
    """Return the monotonic time after which the lease must be taken as lost.

    `called_at` is the monotonic time just before the request whose answer brought the grant was sent, so that queueing
    and transport count against the lease. For a delivery that was pushed there is no such moment; its caller passes the
    time of receipt, and the deadline is then only good for deciding what is still worth starting. Of the server's times
    only the difference is used, so a wall clock that is a day off grants nothing. A result in the past means that
    nothing is granted. Source: seed worker-sdk section 4.
    """
    return called_at + (lease_until - server_time).total_seconds() - margin_s

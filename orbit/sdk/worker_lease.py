"""What a control response says about an attempt, and until when its handler may go on.

The only way to an execution deadline is `confirmed`, which the connection calls on the answer to one of its own
requests. A lease that was constructed, copied with `dataclasses.replace` or read from JSON has none.
Source: seed worker-sdk section 4.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, fields
from typing import Final

from orbit.protocol.attempt_v1 import AttemptState, CommandResult, Disposition, Lease, Receipt
from orbit.protocol.grant import local_deadline

_SHARED: Final = tuple(one.name for one in fields(Lease))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLease(Lease):
    """What an attempt may do now, as the answer to a request of this process said.

    `active` means that reports still count; also after a cancel request, which takes away only the right to go on.
    """

    _until: float | None = field(default=None, init=False, repr=False, compare=False)

    def execution_deadline(self) -> float | None:
        """Return the moment by which the handler must have stopped, or None when it must not run at all.

        On the clock of `time.monotonic()`, which `asyncio.timeout_at` takes: the lease's length by the database's
        clock, counted from before the request, less 250 ms. None unless the attempt is active and RUNNING, nobody has
        asked for its cancellation, and the moment has not passed.

        On Linux this clock (CLOCK_MONOTONIC) stands still while the machine is suspended: after a resume the deadline
        may lie later than the lease's end. Reports then count by the lease alone; an effect needs its fence.
        """
        if not self.active or self.state is not AttemptState.RUNNING or self.cancel_requested_at is not None:
            return None
        # Not the event loop's clock, which stands still while a callback runs: this process may have been stopped.
        if self._until is None or time.monotonic() >= self._until:
            return None
        return self._until


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerResult:
    """Answer to start, renew and finish: `receipt` is what was recorded then, `lease` is what holds now."""

    disposition: Disposition
    receipt: Receipt
    lease: WorkerLease


def confirmed(lease: Lease, called_at: float, margin_s: float) -> WorkerLease:
    """Give the lease of an answer its deadline; `called_at` is the monotonic time at which the call began."""
    own = WorkerLease(**{name: getattr(lease, name) for name in _SHARED})
    if lease.lease_until is not None:
        until = local_deadline(called_at, lease.lease_until, lease.server_time, margin_s)
        object.__setattr__(own, "_until", until)
    return own


def confirmed_result(result: CommandResult, called_at: float, margin_s: float) -> WorkerResult:
    """Give the lease in a command's answer its deadline, as `confirmed` does."""
    return WorkerResult(
        disposition=result.disposition,
        receipt=result.receipt,
        lease=confirmed(result.lease, called_at, margin_s),
    )

"""The numbers that bind, in one frozen object that is passed in.

Tests pass `Limits(delivery_lease_s=2)` where waiting for the real lease would teach nothing; the product always uses
the defaults, which are those of the protocol documents.
"""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Sizes in bytes, times in seconds unless the name ends in `_ms`, everything else a count."""

    # What one message may be.
    frame_bytes: int = 512 * KIB
    event_bytes: int = 512 * KIB
    result_bytes: int = 256 * KIB
    json_depth: int = 32
    # Payloads and results nest inside event and frame, so they get less than a frame may have.
    content_depth: int = 28
    number_exponent: int = 9_999
    number_digits: int = 5_000
    request_body_bytes: int = 512 * KIB
    # A payload travels inside an assignment's frame; the rest of the frame is what the task's other fields can need.
    payload_bytes: int = 496 * KIB

    # How a connection behaves.
    handshake_s: float = 8.0
    control_s: float = 10.0
    control_in_flight: int = 32
    assignment_buffer: int = 8
    cancellation_buffer: int = 32
    read_idle_s: float = 60.0
    session_s: float = 45.0
    heartbeat_s: float = 15.0
    local_margin_s: float = 0.25
    node_poll_s: float = 0.5

    # Deliveries of events.
    delivery_lease_s: float = 30.0
    delivery_batch: int = 64
    window_default: int = 64
    window_max: int = 1_000
    attempt_budget_default: int = 10
    attempt_budget_max: int = 100
    grant_max: int = 100
    subscriptions_per_namespace: int = 64

    # One transaction of the platform, from connecting to COMMIT's answer; shorter than anybody waits for a reply.
    transaction_s: float = 5.0

    # Execution of tasks.
    task_lease_s: float = 30.0
    claim_batch: int = 16
    sweep_batch: int = 64
    # Reports without authority that are kept of one attempt; with its own result they fit into one HTTP answer.
    evidence_per_attempt: int = 4
    history_bytes: int = 768 * KIB
    # What a person gives as proof of a resolution.
    evidence_bytes: int = 64 * KIB

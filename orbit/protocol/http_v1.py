"""Requests and responses of the HTTP interface, as msgspec structs shared by the platform and the SDK.

Requests refuse unknown members; responses ignore them, so that an older SDK reads a newer server. The bytes go through
`strict_json` first (duplicate keys, invalid UTF-8, depth); the structs then check types, and `orbit.server` checks the
ranges that need a sentence of their own. Times are text in the canonical form of `values.format_time`; versions are
decimal strings; payloads and results are kept as the exact JSON text that was received.

`repr` of a struct never shows a payload or a result.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

# In Python `$` also matches before a newline at the end, in JSON Schema it does not; the lookahead makes them agree.
_END = r"$(?!\n)"
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*" + _END

Id = Annotated[str, Meta(pattern="^[0-9a-f]{32}$", max_length=32)]
Name = Annotated[str, Meta(pattern=_NAME, min_length=1, max_length=64)]
HandlerName = Annotated[str, Meta(pattern=_NAME, min_length=1, max_length=128)]
ConcurrencyKey = Annotated[str, Meta(pattern="^[!-~]+" + _END, min_length=1, max_length=128)]
Time = Annotated[
    str,
    Meta(
        pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,6})?Z" + _END,
        max_length=27,
    ),
]
Version = Annotated[str, Meta(pattern="^[1-9][0-9]{0,19}" + _END, max_length=20)]
Code = Annotated[str, Meta(pattern="^[A-Z][A-Z0-9_]*" + _END, min_length=1, max_length=64)]

DAY_MS = 86_400_000


class TaskState(StrEnum):
    """Where a task stands. The last four have a result event; NEEDS_REVIEW waits for a person and is not an end."""

    WAITING = "WAITING"
    LEASED = "LEASED"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    NEEDS_REVIEW = "NEEDS_REVIEW"


class RecoverySafety(StrEnum):
    """Whether an attempt with an unknown effect may be followed by another one without a person's word."""

    RECONCILE_ONLY = "RECONCILE_ONLY"
    IDEMPOTENT = "IDEMPOTENT"


class DeliveryState(StrEnum):
    """Where a delivery stands; `orbit.server.decide.delivery` holds the table of its changes."""

    PENDING = "PENDING"
    LEASED = "LEASED"
    ACKED = "ACKED"
    EXPIRED = "EXPIRED"


class Resolution(StrEnum):
    """What a person found out about a task under review."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class EventType(StrEnum):
    """What changed in a task. The first four are result events."""

    SUCCEEDED = "task.succeeded"
    FAILED = "task.failed"
    CANCELLED = "task.cancelled"
    NEEDS_REVIEW = "task.needs_review"
    SUBMITTED = "task.submitted"
    LEASED = "task.leased"
    STARTED = "task.started"
    REQUEUED = "task.requeued"


class RetryPolicy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often and after which waits an execution may be tried again. All delays in milliseconds."""

    max_attempts: Annotated[int, Meta(ge=1, le=100)] = 1
    initial_delay_ms: Annotated[int, Meta(ge=1, le=DAY_MS)] = 1_000
    max_delay_ms: Annotated[int, Meta(ge=1, le=DAY_MS)] = 60_000
    # May exceed the task's timeout; the smaller of the two then ends the attempt.
    attempt_timeout_ms: Annotated[int, Meta(ge=100, le=DAY_MS)] = 300_000


class SubmitTask(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/tasks. Everything is frozen once accepted."""

    queue_id: Id
    handler: HandlerName
    handler_version: Name
    payload_version: Name
    payload: Raw
    recovery_safety: RecoverySafety = RecoverySafety.RECONCILE_ONLY
    task_timeout_ms: Annotated[int, Meta(ge=100, le=30 * DAY_MS)] = 3_600_000
    latest_start_at: Time | UnsetType = UNSET
    retry: RetryPolicy = RetryPolicy()
    priority: Annotated[int, Meta(ge=0, le=9)] = 0
    concurrency_key: ConcurrencyKey | UnsetType = UNSET

    def __repr__(self) -> str:
        return f"SubmitTask(queue_id={self.queue_id!r}, handler={self.handler!r}, payload=…)"


class Task(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task as the platform has it. Absent means not applicable, a false `effect_uncertain` or priority 0."""

    task_id: Id
    queue_id: Id
    handler: HandlerName
    handler_version: Name
    payload_version: Name
    payload: Raw
    recovery_safety: RecoverySafety
    task_timeout_ms: int
    retry: RetryPolicy
    state: TaskState
    version: Version
    attempt_count: int
    created_at: Time
    updated_at: Time
    deadline_at: Time
    priority: int = 0
    effect_uncertain: bool = False
    latest_start_at: Time | UnsetType = UNSET
    available_at: Time | UnsetType = UNSET
    concurrency_key: str | UnsetType = UNSET
    retry_of: Id | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error_code: str | UnsetType = UNSET
    cancel_requested_at: Time | UnsetType = UNSET
    completed_at: Time | UnsetType = UNSET

    def __repr__(self) -> str:
        return f"Task(task_id={self.task_id!r}, state={self.state.value}, version={self.version!r}, payload=…)"


class TaskAccepted(Struct, frozen=True, kw_only=True):
    """Answer to a submit. `created` is false when the same operation key had brought the same content before."""

    task: Task
    created: bool


class TaskSummary(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task in a list: without payload, result and policy. Absent means the same as in a Task."""

    task_id: Id
    queue_id: Id
    handler: HandlerName
    handler_version: Name
    payload_version: Name
    recovery_safety: RecoverySafety
    state: TaskState
    version: Version
    attempt_count: int
    max_attempts: int
    created_at: Time
    updated_at: Time
    deadline_at: Time
    priority: int = 0
    effect_uncertain: bool = False
    retry_of: Id | UnsetType = UNSET
    error_code: str | UnsetType = UNSET
    cancel_requested_at: Time | UnsetType = UNSET
    completed_at: Time | UnsetType = UNSET


class CancelTask(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/tasks/{task_id}/cancel; the body is an empty object, or nothing."""


class ResolveTask(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/tasks/{task_id}/resolve: what a person found out, and what proves it.

    `evidence` is a text, such as a reference, or an object. `result` may go with SUCCEEDED; `error_code` goes with
    FAILED and may go with CANCELLED.
    """

    outcome: Resolution
    evidence: Raw
    result: Raw | UnsetType = UNSET
    error_code: Code | UnsetType = UNSET

    def __repr__(self) -> str:
        return f"ResolveTask(outcome={self.outcome.value!r}, evidence=…)"


class RetryTask(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/tasks/{task_id}/retry; the body is an empty object, or nothing."""


class PauseSubscription(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/subscriptions/{subscription_id}/pause; the body is an empty object, or nothing."""


class ResumeSubscription(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/subscriptions/{subscription_id}/resume; the body is an empty object, or nothing."""


class Queue(Struct, frozen=True, kw_only=True):
    """A queue that the caller's credential is bound to. A limit that is absent is none."""

    queue_id: Id
    namespace: Name
    environment: Name
    name: Name
    created_at: Time
    paused: bool = False
    concurrency_limit: int | UnsetType = UNSET
    start_limit: int | UnsetType = UNSET
    start_window_ms: int | UnsetType = UNSET


class PauseQueue(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/queues/{queue_id}/pause; the body is an empty object, or nothing."""


class ResumeQueue(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/queues/{queue_id}/resume; the body is an empty object, or nothing."""


class QueueLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """PUT /v1/queues/{queue_id}/limits: all limits of the queue; one that is left out is taken away.

    `concurrency_limit` bounds attempts that have not ended, `start_limit` starts in each window of `start_window_ms`.
    """

    concurrency_limit: Annotated[int, Meta(ge=1, le=1_000_000)] | UnsetType = UNSET
    start_limit: Annotated[int, Meta(ge=1, le=1_000_000)] | UnsetType = UNSET
    start_window_ms: Annotated[int, Meta(ge=100, le=DAY_MS)] | UnsetType = UNSET


class CreateSubscription(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/subscriptions. Events from before the creation are not delivered."""

    queue_id: Id
    event_types: Annotated[list[EventType], Meta(min_length=1, max_length=8, extra_json_schema={"uniqueItems": True})]
    window: Annotated[int, Meta(ge=1, le=1_000)] = 64
    attempt_budget: Annotated[int, Meta(ge=1, le=100)] = 10


class Subscription(Struct, frozen=True, kw_only=True):
    """A standing order for a queue's events. `window` bounds deliveries that are out, expired or tried before."""

    subscription_id: Id
    queue_id: Id
    event_types: list[EventType]
    enabled: bool
    window: int
    attempt_budget: int
    created_at: Time
    updated_at: Time


class Delivery(Struct, frozen=True, kw_only=True):
    """One event's way to one subscription, without the lease's proof and without the event's content."""

    delivery_id: Id
    subscription_id: Id
    event_id: Id
    state: DeliveryState
    attempts: int
    attempt_budget: int
    created_at: Time
    updated_at: Time
    epoch: Version | UnsetType = UNSET
    lease_until: Time | UnsetType = UNSET
    acked_at: Time | UnsetType = UNSET


class GrantAttempts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/deliveries/{delivery_id}/grant: more attempts for a delivery, EXPIRED or not."""

    attempts: Annotated[int, Meta(ge=1, le=100)]


class Page(Struct, frozen=True, kw_only=True):
    """Base of lists: `next` is the cursor for `?after=`, absent on the last page."""

    next: str | UnsetType = UNSET


class TaskPage(Page, frozen=True, kw_only=True):
    """GET /v1/tasks, in the order in which the tasks came to their state."""

    tasks: list[TaskSummary]


class QueuePage(Page, frozen=True, kw_only=True):
    """GET /v1/queues."""

    queues: list[Queue]


class SubscriptionPage(Page, frozen=True, kw_only=True):
    """GET /v1/subscriptions."""

    subscriptions: list[Subscription]


class DeliveryPage(Page, frozen=True, kw_only=True):
    """GET /v1/subscriptions/{subscription_id}/deliveries."""

    deliveries: list[Delivery]


class ErrorBody(Struct, frozen=True, kw_only=True):
    """Body of every refusal. `request_id` is what to quote to the operators; it stands in the server's log too."""

    code: str
    message: str
    request_id: str


def to_json(value: Any) -> bytes:
    """The response's bytes; `Raw` members are spliced as they are."""
    return msgspec.json.encode(value)

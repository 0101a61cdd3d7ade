"""The platform's tables as SQLAlchemy Core, the source of the queries; `migrations/` creates them.

Conventions: identifiers are 32 hexadecimal digits in binary-collated columns, times are DATETIME(6) in UTC
and come from the database's clock, documents are MEDIUMTEXT with their exact text. There are no foreign keys: every
write goes through one door (`ledger`), and locks of parents that nobody asked for would break the lock order: the
receipt of an HTTP operation, namespace, queue, subscription, task, attempt, delivery, the receipt of a command. The
first comes first because whoever waits for it must hold nothing that others need.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Computed,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.mysql import BIGINT, DATETIME, INTEGER, MEDIUMTEXT, TINYINT

metadata: Final = MetaData()

_TABLE: Final[dict[str, Any]] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_0900_bin",
}


def _id(name: str, *, primary_key: bool = False, nullable: bool = False) -> Column[str]:
    return Column(name, String(32, collation="ascii_bin"), primary_key=primary_key, nullable=nullable)


def _digest(name: str, *, nullable: bool = False) -> Column[str]:
    return Column(name, String(64, collation="ascii_bin"), nullable=nullable)


def _time_key(name: str) -> Column[object]:
    return Column(name, DATETIME(fsp=6), primary_key=True)


def _time(name: str, *, nullable: bool = False) -> Column[object]:
    return Column(name, DATETIME(fsp=6), nullable=nullable)


applications: Final = Table(
    "applications",
    metadata,
    _id("application_id", primary_key=True),
    Column("name", String(64), nullable=False, unique=True),
    _time("created_at"),
    **_TABLE,
)
namespaces: Final = Table(
    "namespaces",
    metadata,
    _id("namespace_id", primary_key=True),
    Column("name", String(64), nullable=False, unique=True),
    _time("created_at"),
    **_TABLE,
)
queues: Final = Table(
    "queues",
    metadata,
    _id("queue_id", primary_key=True),
    _id("namespace_id"),
    Column("environment", String(64), nullable=False),
    Column("name", String(64), nullable=False),
    # What an operator set: claims stop while paused; starts in a window and executions at a time are bounded.
    Column("paused", Boolean, nullable=False, server_default=text("0")),
    Column("concurrency_limit", INTEGER(unsigned=True), nullable=True),
    Column("start_limit", INTEGER(unsigned=True), nullable=True),
    Column("start_window_ms", INTEGER(unsigned=True), nullable=True),
    _time("created_at"),
    UniqueConstraint("namespace_id", "environment", "name", name="uq_queues_name"),
    **_TABLE,
)
credentials: Final = Table(
    "credentials",
    metadata,
    _id("credential_id", primary_key=True),
    _id("application_id"),
    _id("namespace_id"),
    _id("queue_id"),
    _digest("token_sha256"),
    Column("permissions", String(512), nullable=False),  # names separated by single blanks
    _time("created_at"),
    _time("revoked_at", nullable=True),
    UniqueConstraint("token_sha256", name="uq_credentials_token"),
    **_TABLE,
)
tasks: Final = Table(
    "tasks",
    metadata,
    _id("task_id", primary_key=True),
    _id("namespace_id"),
    _id("application_id"),
    _id("queue_id"),
    # What the producer asked for; frozen at submit.
    Column("handler", String(128), nullable=False),
    Column("handler_version", String(64), nullable=False),
    Column("payload_version", String(64), nullable=False),
    Column("payload", MEDIUMTEXT, nullable=False),
    Column("recovery_safety", String(16), nullable=False),
    Column("task_timeout_ms", BigInteger, nullable=False),
    _time("latest_start_at", nullable=True),
    Column("retry_max_attempts", Integer, nullable=False),
    Column("retry_initial_delay_ms", BigInteger, nullable=False),
    Column("retry_max_delay_ms", BigInteger, nullable=False),
    Column("attempt_timeout_ms", BigInteger, nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("concurrency_key", String(128), nullable=True),
    _id("retry_of", nullable=True),
    # Where it stands; only the ledger writes these.
    Column("state", String(16, collation="ascii_bin"), nullable=False),
    Column("version", BIGINT(unsigned=True), nullable=False),
    Column("attempt_count", Integer, nullable=False),
    Column("effect_uncertain", Boolean, nullable=False),
    Column("result", MEDIUMTEXT, nullable=True),
    Column("error_code", String(64), nullable=True),
    _time("available_at"),
    _time("deadline_at"),
    _time("cancel_requested_at", nullable=True),
    _time("created_at"),
    _time("updated_at"),
    _time("completed_at", nullable=True),
    # No attempt may begin from then on: the earlier of the deadline and the latest start.
    Column(
        "start_before",
        DATETIME(fsp=6),
        Computed("LEAST(deadline_at, COALESCE(latest_start_at, deadline_at))", persisted=False),
        nullable=False,
    ),
    # Lists of tasks by state, in the order in which they came to it.
    Index("ix_tasks_listed", "queue_id", "application_id", "state", "updated_at"),
    Index("ix_tasks_overdue", "state", "start_before"),
    # Within one capability, one key and one priority the oldest is always the first to dispatch.
    Index(
        "ix_tasks_dispatch",
        "queue_id",
        "state",
        "handler",
        "handler_version",
        "payload_version",
        "concurrency_key",
        "priority",
        "available_at",
    ),
    **_TABLE,
)
operations: Final = Table(
    # Receipts of HTTP operations: the inbox pattern keyed by the caller's Idempotency-Key.
    "operations",
    metadata,
    _id("namespace_id", primary_key=True),
    _id("application_id", primary_key=True),
    Column("kind", String(32, collation="ascii_bin"), primary_key=True),
    Column("operation_key", String(128), primary_key=True),
    _digest("content_sha256"),
    _id("resource_id"),
    _time("created_at"),
    **_TABLE,
)
events: Final = Table(
    "events",
    metadata,
    _id("event_id", primary_key=True),
    _id("queue_id"),
    _id("task_id"),
    Column("task_version", BIGINT(unsigned=True), nullable=False),
    Column("event_type", String(32, collation="ascii_bin"), nullable=False),
    Column("event", MEDIUMTEXT, nullable=False),  # the frozen canonical text that every delivery carries
    _time("occurred_at"),
    UniqueConstraint("task_id", "task_version", name="uq_events_version"),
    **_TABLE,
)
subscriptions: Final = Table(
    "subscriptions",
    metadata,
    _id("subscription_id", primary_key=True),
    _id("namespace_id"),
    _id("application_id"),
    _id("queue_id"),
    Column("event_types", String(512, collation="ascii_bin"), nullable=False),  # names separated by single blanks
    Column("enabled", Boolean, nullable=False),
    Column("window_size", Integer, nullable=False),
    Column("attempt_budget", Integer, nullable=False),
    _time("created_at"),
    _time("updated_at"),
    Index("ix_subscriptions_queue", "queue_id"),
    Index("ix_subscriptions_owner", "namespace_id", "application_id", "created_at"),
    **_TABLE,
)
deliveries: Final = Table(
    "deliveries",
    metadata,
    # The order of creation, which is the order of dispatch; the public identity is delivery_id.
    Column("delivery_no", BIGINT(unsigned=True), primary_key=True, autoincrement=True),
    _id("delivery_id"),
    _id("subscription_id"),
    _id("event_id"),
    Column("state", String(8, collation="ascii_bin"), nullable=False),
    Column("attempts", INTEGER(unsigned=True), nullable=False),
    Column("attempt_budget", INTEGER(unsigned=True), nullable=False),
    Column("epoch", BIGINT(unsigned=True), nullable=False),  # 0 before the first lease
    _digest("lease_secret_sha256", nullable=True),
    _time("lease_until", nullable=True),
    _time("acked_at", nullable=True),
    _time("created_at"),
    _time("updated_at"),
    # Whether it takes a place in its subscription's window.
    Column(
        "in_window",
        TINYINT(1),
        Computed("state IN ('LEASED', 'EXPIRED') OR (state = 'PENDING' AND attempts > 0)", persisted=False),
        nullable=False,
    ),
    UniqueConstraint("delivery_id", name="uq_deliveries_id"),
    UniqueConstraint("subscription_id", "event_id", name="uq_deliveries_event"),
    Index("ix_deliveries_claim", "subscription_id", "in_window", "state", "delivery_no"),
    Index("ix_deliveries_lease", "state", "lease_until"),
    **_TABLE,
)


attempts: Final = Table(
    "attempts",
    metadata,
    _id("attempt_id", primary_key=True),
    _id("task_id"),
    _id("queue_id"),
    _id("instance_id"),
    Column("epoch", BIGINT(unsigned=True), nullable=False),  # the task's n-th attempt
    Column("state", String(8, collation="ascii_bin"), nullable=False),
    _digest("lease_secret_sha256"),
    Column("node", String(64), nullable=False),
    _time("leased_at"),
    _time("lease_until"),
    _time("started_at", nullable=True),
    _time("timeout_at", nullable=True),  # from the start; no renewal passes it
    _time("ended_at", nullable=True),
    Column("outcome", String(16, collation="ascii_bin"), nullable=True),
    Column("error_code", String(64), nullable=True),
    Column("result", MEDIUMTEXT, nullable=True),
    Column("retryable", Boolean, nullable=True),
    Column("decision", String(32, collation="ascii_bin"), nullable=True),
    Column("delay_ms", BigInteger, nullable=True),
    _time("next_available_at", nullable=True),
    Column("concurrency_key", String(128), nullable=True),
    Column("concurrency_token", BIGINT(unsigned=True), nullable=True),
    UniqueConstraint("task_id", "epoch", name="uq_attempts_epoch"),
    Index("ix_attempts_lease", "state", "lease_until"),
    Index("ix_attempts_queue", "queue_id", "state"),
    Index("ix_attempts_instance", "instance_id", "state"),
    **_TABLE,
)
evidence: Final = Table(
    # Reports that came without authority: kept for a person, without any effect on the task.
    "evidence",
    metadata,
    _id("attempt_id", primary_key=True),
    _id("message_id", primary_key=True),
    Column("outcome", String(16, collation="ascii_bin"), nullable=False),
    Column("error_code", String(64), nullable=True),
    Column("result", MEDIUMTEXT, nullable=True),
    Column("retryable", Boolean, nullable=False),
    _time("received_at"),
    **_TABLE,
)
worker_receipts: Final = Table(
    # Receipts of a worker's messages: the inbox pattern keyed by attempt and message.
    "worker_receipts",
    metadata,
    _id("attempt_id", primary_key=True),
    _id("message_id", primary_key=True),
    _digest("content_sha256"),
    _digest("report_sha256", nullable=True),  # of a finish: the same report under a new message gets the first receipt
    Column("receipt", MEDIUMTEXT, nullable=False),
    _time("created_at"),
    Index("ix_worker_receipts_report", "attempt_id", "report_sha256"),
    **_TABLE,
)
worker_instances: Final = Table(
    "worker_instances",
    metadata,
    _id("instance_id", primary_key=True),
    # What the first hello fixed.
    _id("namespace_id"),
    _id("application_id"),
    _id("credential_id"),
    _id("queue_id"),
    _digest("secret_sha256"),
    _digest("registration_sha256"),
    Column("capacity_max", INTEGER(unsigned=True), nullable=False),
    Column("cancellation_notifications", Boolean, nullable=False),
    Column("concurrency_keys", Boolean, nullable=False),
    # The newest session, which fences all earlier ones.
    Column("revision", BIGINT(unsigned=True), nullable=False),
    _time("session_until"),
    Column("node", String(64), nullable=False),
    Column("sequence", BIGINT(unsigned=True), nullable=False),  # 0 before the session's first capacity
    Column("capacity", INTEGER(unsigned=True), nullable=False),
    Column("drain", Boolean, nullable=False),
    _time("created_at"),
    _time("updated_at"),
    **_TABLE,
)
concurrency_permits: Final = Table(
    # One execution at a time for each key of a queue; the token grows with each grant, so a late holder is told apart.
    "concurrency_permits",
    metadata,
    _id("queue_id", primary_key=True),
    Column("concurrency_key", String(128), primary_key=True),
    _id("attempt_id", nullable=True),  # NULL while nobody holds it
    Column("token", BIGINT(unsigned=True), nullable=False),
    _time("updated_at"),
    **_TABLE,
)
queue_starts: Final = Table(
    # Starts that were allowed, by window; the first start of a window removes those that are long over.
    "queue_starts",
    metadata,
    _id("queue_id", primary_key=True),
    _time_key("window_start"),
    Column("starts", INTEGER(unsigned=True), nullable=False),
    **_TABLE,
)
audit: Final = Table(
    "audit",
    metadata,
    Column("audit_no", BIGINT(unsigned=True), primary_key=True, autoincrement=True),
    _id("namespace_id"),
    _id("queue_id"),
    Column("actor", String(64), nullable=False),  # a credential's id, or a node's name
    Column("action", String(32, collation="ascii_bin"), nullable=False),
    _id("object_id"),
    Column("details", MEDIUMTEXT, nullable=False),  # canonical JSON; never a payload or a result
    Column("evidence", MEDIUMTEXT, nullable=True),  # what a person gave as proof: canonical JSON, told to nobody else
    _time("at"),
    Index("ix_audit_object", "object_id", "audit_no"),
    **_TABLE,
)

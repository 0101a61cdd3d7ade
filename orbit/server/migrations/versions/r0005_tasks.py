"""Create tasks."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Run the one statement of this revision."""
    op.execute("""
        CREATE TABLE IF NOT EXISTS tasks (
            task_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            namespace_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            application_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            queue_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            handler VARCHAR(128) NOT NULL,
            handler_version VARCHAR(64) NOT NULL,
            payload_version VARCHAR(64) NOT NULL,
            payload MEDIUMTEXT NOT NULL,
            recovery_safety VARCHAR(16) NOT NULL,
            task_timeout_ms BIGINT NOT NULL,
            latest_start_at DATETIME(6),
            retry_max_attempts INT NOT NULL,
            retry_initial_delay_ms BIGINT NOT NULL,
            retry_max_delay_ms BIGINT NOT NULL,
            attempt_timeout_ms BIGINT NOT NULL,
            priority SMALLINT NOT NULL,
            concurrency_key VARCHAR(128),
            retry_of VARCHAR(32) COLLATE ascii_bin,
            state VARCHAR(16) COLLATE ascii_bin NOT NULL,
            version BIGINT UNSIGNED NOT NULL,
            attempt_count INT NOT NULL,
            effect_uncertain TINYINT(1) NOT NULL,
            result MEDIUMTEXT,
            error_code VARCHAR(64),
            available_at DATETIME(6) NOT NULL,
            deadline_at DATETIME(6) NOT NULL,
            cancel_requested_at DATETIME(6),
            created_at DATETIME(6) NOT NULL,
            updated_at DATETIME(6) NOT NULL,
            completed_at DATETIME(6),
            start_before DATETIME(6)
                GENERATED ALWAYS AS (LEAST(deadline_at, COALESCE(latest_start_at, deadline_at))) VIRTUAL NOT NULL,
            PRIMARY KEY (task_id),
            KEY ix_tasks_overdue (state, start_before),
            KEY ix_tasks_dispatch (
                queue_id, state, handler, handler_version, payload_version, concurrency_key, priority, available_at
            ),
            KEY ix_tasks_listed (queue_id, application_id, state, updated_at)
        ) ENGINE = InnoDB, DEFAULT CHARACTER SET = utf8mb4, COLLATE = utf8mb4_0900_bin
    """)

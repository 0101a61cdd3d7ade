"""Create attempts."""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Run the one statement of this revision."""
    op.execute("""
        CREATE TABLE IF NOT EXISTS attempts (
            attempt_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            task_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            queue_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            instance_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            epoch BIGINT UNSIGNED NOT NULL,
            state VARCHAR(8) COLLATE ascii_bin NOT NULL,
            lease_secret_sha256 VARCHAR(64) COLLATE ascii_bin NOT NULL,
            node VARCHAR(64) NOT NULL,
            leased_at DATETIME(6) NOT NULL,
            lease_until DATETIME(6) NOT NULL,
            started_at DATETIME(6),
            timeout_at DATETIME(6),
            ended_at DATETIME(6),
            outcome VARCHAR(16) COLLATE ascii_bin,
            error_code VARCHAR(64),
            result MEDIUMTEXT,
            retryable TINYINT(1),
            decision VARCHAR(32) COLLATE ascii_bin,
            delay_ms BIGINT,
            next_available_at DATETIME(6),
            concurrency_key VARCHAR(128),
            concurrency_token BIGINT UNSIGNED,
            PRIMARY KEY (attempt_id),
            UNIQUE KEY uq_attempts_epoch (task_id, epoch),
            KEY ix_attempts_instance (instance_id, state),
            KEY ix_attempts_lease (state, lease_until),
            KEY ix_attempts_queue (queue_id, state)
        ) ENGINE = InnoDB, DEFAULT CHARACTER SET = utf8mb4, COLLATE = utf8mb4_0900_bin
    """)

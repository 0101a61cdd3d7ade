"""Create worker_instances."""

from __future__ import annotations

from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Run the one statement of this revision."""
    op.execute("""
        CREATE TABLE IF NOT EXISTS worker_instances (
            instance_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            namespace_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            application_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            credential_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            queue_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            secret_sha256 VARCHAR(64) COLLATE ascii_bin NOT NULL,
            registration_sha256 VARCHAR(64) COLLATE ascii_bin NOT NULL,
            capacity_max INT UNSIGNED NOT NULL,
            cancellation_notifications TINYINT(1) NOT NULL,
            concurrency_keys TINYINT(1) NOT NULL,
            revision BIGINT UNSIGNED NOT NULL,
            session_until DATETIME(6) NOT NULL,
            node VARCHAR(64) NOT NULL,
            sequence BIGINT UNSIGNED NOT NULL,
            capacity INT UNSIGNED NOT NULL,
            drain TINYINT(1) NOT NULL,
            created_at DATETIME(6) NOT NULL,
            updated_at DATETIME(6) NOT NULL,
            PRIMARY KEY (instance_id)
        ) ENGINE = InnoDB, DEFAULT CHARACTER SET = utf8mb4, COLLATE = utf8mb4_0900_bin
    """)

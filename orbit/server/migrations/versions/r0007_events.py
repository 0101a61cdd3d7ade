"""Create events."""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Run the one statement of this revision."""
    op.execute("""
        CREATE TABLE IF NOT EXISTS events (
            event_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            queue_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            task_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            task_version BIGINT UNSIGNED NOT NULL,
            event_type VARCHAR(32) COLLATE ascii_bin NOT NULL,
            event MEDIUMTEXT NOT NULL,
            occurred_at DATETIME(6) NOT NULL,
            PRIMARY KEY (event_id),
            UNIQUE KEY uq_events_version (task_id, task_version)
        ) ENGINE = InnoDB, DEFAULT CHARACTER SET = utf8mb4, COLLATE = utf8mb4_0900_bin
    """)

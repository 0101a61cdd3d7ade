"""Create queues."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Run the one statement of this revision."""
    op.execute("""
        CREATE TABLE IF NOT EXISTS queues (
            queue_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            namespace_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            environment VARCHAR(64) NOT NULL,
            name VARCHAR(64) NOT NULL,
            paused TINYINT(1) NOT NULL DEFAULT 0,
            concurrency_limit INT UNSIGNED,
            start_limit INT UNSIGNED,
            start_window_ms INT UNSIGNED,
            created_at DATETIME(6) NOT NULL,
            PRIMARY KEY (queue_id),
            UNIQUE KEY uq_queues_name (namespace_id, environment, name)
        ) ENGINE = InnoDB, DEFAULT CHARACTER SET = utf8mb4, COLLATE = utf8mb4_0900_bin
    """)

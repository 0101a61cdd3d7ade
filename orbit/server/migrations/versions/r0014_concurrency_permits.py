"""Create concurrency_permits."""

from __future__ import annotations

from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Run the one statement of this revision."""
    op.execute("""
        CREATE TABLE IF NOT EXISTS concurrency_permits (
            queue_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            concurrency_key VARCHAR(128) NOT NULL,
            attempt_id VARCHAR(32) COLLATE ascii_bin,
            token BIGINT UNSIGNED NOT NULL,
            updated_at DATETIME(6) NOT NULL,
            PRIMARY KEY (queue_id, concurrency_key)
        ) ENGINE = InnoDB, DEFAULT CHARACTER SET = utf8mb4, COLLATE = utf8mb4_0900_bin
    """)

"""Create queue_starts."""

from __future__ import annotations

from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Run the one statement of this revision."""
    op.execute("""
        CREATE TABLE IF NOT EXISTS queue_starts (
            queue_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            window_start DATETIME(6) NOT NULL,
            starts INT UNSIGNED NOT NULL,
            PRIMARY KEY (queue_id, window_start)
        ) ENGINE = InnoDB, DEFAULT CHARACTER SET = utf8mb4, COLLATE = utf8mb4_0900_bin
    """)

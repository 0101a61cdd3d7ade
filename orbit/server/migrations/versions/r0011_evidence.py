"""Create evidence."""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Run the one statement of this revision."""
    op.execute("""
        CREATE TABLE IF NOT EXISTS evidence (
            attempt_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            message_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            outcome VARCHAR(16) COLLATE ascii_bin NOT NULL,
            error_code VARCHAR(64),
            result MEDIUMTEXT,
            retryable TINYINT(1) NOT NULL,
            received_at DATETIME(6) NOT NULL,
            PRIMARY KEY (attempt_id, message_id)
        ) ENGINE = InnoDB, DEFAULT CHARACTER SET = utf8mb4, COLLATE = utf8mb4_0900_bin
    """)

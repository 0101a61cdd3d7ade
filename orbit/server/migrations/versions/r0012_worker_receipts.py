"""Create worker_receipts."""

from __future__ import annotations

from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Run the one statement of this revision."""
    op.execute("""
        CREATE TABLE IF NOT EXISTS worker_receipts (
            attempt_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            message_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            content_sha256 VARCHAR(64) COLLATE ascii_bin NOT NULL,
            report_sha256 VARCHAR(64) COLLATE ascii_bin,
            receipt MEDIUMTEXT NOT NULL,
            created_at DATETIME(6) NOT NULL,
            PRIMARY KEY (attempt_id, message_id),
            KEY ix_worker_receipts_report (attempt_id, report_sha256)
        ) ENGINE = InnoDB, DEFAULT CHARACTER SET = utf8mb4, COLLATE = utf8mb4_0900_bin
    """)

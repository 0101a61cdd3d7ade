"""Create applications."""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Run the one statement of this revision."""
    op.execute("""
        CREATE TABLE IF NOT EXISTS applications (
            application_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            name VARCHAR(64) NOT NULL,
            created_at DATETIME(6) NOT NULL,
            PRIMARY KEY (application_id),
            UNIQUE KEY name (name)
        ) ENGINE = InnoDB, DEFAULT CHARACTER SET = utf8mb4, COLLATE = utf8mb4_0900_bin
    """)

"""Create operations."""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Run the one statement of this revision."""
    op.execute("""
        CREATE TABLE IF NOT EXISTS operations (
            namespace_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            application_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            kind VARCHAR(32) COLLATE ascii_bin NOT NULL,
            operation_key VARCHAR(128) NOT NULL,
            content_sha256 VARCHAR(64) COLLATE ascii_bin NOT NULL,
            resource_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            created_at DATETIME(6) NOT NULL,
            PRIMARY KEY (namespace_id, application_id, kind, operation_key)
        ) ENGINE = InnoDB, DEFAULT CHARACTER SET = utf8mb4, COLLATE = utf8mb4_0900_bin
    """)

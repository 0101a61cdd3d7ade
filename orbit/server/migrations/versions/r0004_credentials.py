"""Create credentials."""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Run the one statement of this revision."""
    op.execute("""
        CREATE TABLE IF NOT EXISTS credentials (
            credential_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            application_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            namespace_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            queue_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            token_sha256 VARCHAR(64) COLLATE ascii_bin NOT NULL,
            permissions VARCHAR(512) NOT NULL,
            created_at DATETIME(6) NOT NULL,
            revoked_at DATETIME(6),
            PRIMARY KEY (credential_id),
            UNIQUE KEY uq_credentials_token (token_sha256)
        ) ENGINE = InnoDB, DEFAULT CHARACTER SET = utf8mb4, COLLATE = utf8mb4_0900_bin
    """)

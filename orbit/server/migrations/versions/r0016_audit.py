"""Create audit."""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Run the one statement of this revision."""
    op.execute("""
        CREATE TABLE IF NOT EXISTS audit (
            audit_no BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
            namespace_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            queue_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            actor VARCHAR(64) NOT NULL,
            action VARCHAR(32) COLLATE ascii_bin NOT NULL,
            object_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            details MEDIUMTEXT NOT NULL,
            evidence MEDIUMTEXT,
            at DATETIME(6) NOT NULL,
            PRIMARY KEY (audit_no),
            KEY ix_audit_object (object_id, audit_no)
        ) ENGINE = InnoDB, DEFAULT CHARACTER SET = utf8mb4, COLLATE = utf8mb4_0900_bin
    """)

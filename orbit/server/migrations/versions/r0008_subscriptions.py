"""Create subscriptions."""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Run the one statement of this revision."""
    op.execute("""
        CREATE TABLE IF NOT EXISTS subscriptions (
            subscription_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            namespace_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            application_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            queue_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            event_types VARCHAR(512) COLLATE ascii_bin NOT NULL,
            enabled TINYINT(1) NOT NULL,
            window_size INT NOT NULL,
            attempt_budget INT NOT NULL,
            created_at DATETIME(6) NOT NULL,
            updated_at DATETIME(6) NOT NULL,
            PRIMARY KEY (subscription_id),
            KEY ix_subscriptions_owner (namespace_id, application_id, created_at),
            KEY ix_subscriptions_queue (queue_id)
        ) ENGINE = InnoDB, DEFAULT CHARACTER SET = utf8mb4, COLLATE = utf8mb4_0900_bin
    """)

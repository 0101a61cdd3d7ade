"""Create deliveries."""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Run the one statement of this revision."""
    op.execute("""
        CREATE TABLE IF NOT EXISTS deliveries (
            delivery_no BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
            delivery_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            subscription_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            event_id VARCHAR(32) COLLATE ascii_bin NOT NULL,
            state VARCHAR(8) COLLATE ascii_bin NOT NULL,
            attempts INT UNSIGNED NOT NULL,
            attempt_budget INT UNSIGNED NOT NULL,
            epoch BIGINT UNSIGNED NOT NULL,
            lease_secret_sha256 VARCHAR(64) COLLATE ascii_bin,
            lease_until DATETIME(6),
            acked_at DATETIME(6),
            created_at DATETIME(6) NOT NULL,
            updated_at DATETIME(6) NOT NULL,
            in_window TINYINT(1)
                GENERATED ALWAYS AS (state IN ('LEASED', 'EXPIRED') OR (state = 'PENDING' AND attempts > 0))
                VIRTUAL NOT NULL,
            PRIMARY KEY (delivery_no),
            UNIQUE KEY uq_deliveries_id (delivery_id),
            UNIQUE KEY uq_deliveries_event (subscription_id, event_id),
            KEY ix_deliveries_claim (subscription_id, in_window, state, delivery_no),
            KEY ix_deliveries_lease (state, lease_until)
        ) ENGINE = InnoDB, DEFAULT CHARACTER SET = utf8mb4, COLLATE = utf8mb4_0900_bin
    """)

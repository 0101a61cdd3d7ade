"""The two tables as SQLAlchemy Core, equal to `schema.sql` (a test compares both in a real database)."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Column, MetaData, String, Table
from sqlalchemy.dialects.mysql import BIGINT, DATETIME, MEDIUMTEXT, TINYINT

CONSUMER_NAME_LENGTH: Final = 64

metadata: Final = MetaData()

_OPTIONS: Final[dict[str, Any]] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_0900_bin",
}


def _id(name: str, *, primary_key: bool = False) -> Column[str]:
    return Column(name, String(32), primary_key=primary_key, nullable=False)


def _consumer_name() -> Column[str]:
    return Column("consumer_name", String(CONSUMER_NAME_LENGTH), primary_key=True, nullable=False)


def _time(name: str) -> Column[Any]:
    return Column(name, DATETIME(fsp=6), nullable=False)


receiver_inbox: Final = Table(
    "receiver_inbox",
    metadata,
    _consumer_name(),
    _id("queue_id", primary_key=True),
    _id("event_id", primary_key=True),
    Column("event", MEDIUMTEXT(), nullable=False),
    Column("event_sha256", String(64), nullable=False),
    Column("applied", TINYINT(1), nullable=False),
    _time("accepted_at"),
    **_OPTIONS,
)
receiver_task_views: Final = Table(
    "receiver_task_views",
    metadata,
    _consumer_name(),
    _id("queue_id", primary_key=True),
    _id("task_id", primary_key=True),
    Column("task_version", BIGINT(unsigned=True), nullable=False),
    _id("last_event_id"),
    Column("state", String(32), nullable=False),
    Column("result", MEDIUMTEXT(), nullable=True),
    Column("applied_events", BIGINT(unsigned=True), nullable=False),
    _time("created_at"),
    _time("updated_at"),
    **_OPTIONS,
)

TABLES: Final = (receiver_inbox, receiver_task_views)

PLATFORM_TABLES: Final = frozenset(
    {
        "alembic_version",
        "applications",
        "credentials",
        "deliveries",
        "events",
        "namespaces",
        "queues",
        "subscriptions",
        "tasks",
    }
)
"""Names that show a platform's database: the receiver's tables do not belong there."""


def schema_sql() -> str:
    """The text of `schema.sql`: from the installed package, or from the root of a checkout."""
    packaged = resources.files("receiver").joinpath("schema.sql")
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    return Path(__file__).resolve().parent.parent.joinpath("schema.sql").read_text(encoding="utf-8")


def ddl() -> tuple[str, ...]:
    """The statements of `schema.sql` in their order, without the comment lines between them."""
    lines = [line for line in schema_sql().splitlines() if not line.startswith("--")]
    return tuple(part.strip() for part in "\n".join(lines).split(";\n") if part.strip())

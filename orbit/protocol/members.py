"""Reading the members of an untrusted JSON object: what is required, what is optional, what is declared at all."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar

from orbit.protocol.errors import InvalidValue
from orbit.protocol.values import format_time, parse_time

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)


def read_object(
    value: object, path: str, required: frozenset[str], optional: frozenset[str] = frozenset(), *, lenient: bool = False
) -> dict[str, Any]:
    """Give `value` as an object that has all `required` members and, unless `lenient`, none that is not declared.

    Raises InvalidValue.
    """
    if not isinstance(value, dict):
        raise InvalidValue(path, "must be an object")
    for name in sorted(required - value.keys()):
        raise InvalidValue(f"{path}.{name}", "is required")
    if not lenient and value.keys() - required - optional:
        # Without the member's name: an unknown name is the sender's text.
        raise InvalidValue(path, "has a member that is not declared")
    return value


def read_list(value: object, path: str, item: Callable[[object, str], T], *, most: int) -> tuple[T, ...]:
    """Read a list of 1 to `most` items with `item(value, path)`. Raises InvalidValue."""
    if not isinstance(value, list) or not 1 <= len(value) <= most:
        raise InvalidValue(path, f"must be a list of 1 to {most} items")
    return tuple(item(one, f"{path}[{index}]") for index, one in enumerate(value))


def read_flag(value: object, path: str) -> bool:
    """Read true or false. Raises InvalidValue."""
    if not isinstance(value, bool):
        raise InvalidValue(path, "must be true or false")
    return value


def read_word(kind: type[E], value: object, path: str) -> E:
    """Read one word of a closed vocabulary. Raises InvalidValue."""
    if not isinstance(value, str) or value not in kind.__members__.values():
        raise InvalidValue(path, "must be one of " + ", ".join(kind))
    return kind(value)


def optional_time(members: dict[str, Any], name: str, path: str) -> datetime | None:
    """Read the time `name` of the object at `path`, None when it is not there. Raises InvalidValue."""
    return parse_time(members[name], f"{path}.{name}") if name in members else None


def put_time(body: dict[str, Any], name: str, moment: datetime | None) -> None:
    """Write a time into `body`, and nothing for None."""
    if moment is not None:
        body[name] = format_time(moment)

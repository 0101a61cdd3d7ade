"""Who the program is to the platform: the file that `orbit-admin bootstrap` writes, and the environment over it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self

import msgspec

from orbit.protocol import strict_json
from orbit.protocol.errors import InvalidJSON, InvalidValue
from orbit.protocol.values import Secret, parse_id
from orbit.runtime.settings import Environment, SettingsError, UnusableFile, read_secret_file
from orbit.sdk.errors import InvalidConfiguration

_TOKEN: Final = re.compile(r"[!-~]{16,512}")


class _File(msgspec.Struct, frozen=True):
    """The file's members; unknown ones are a newer bootstrap's."""

    application: str
    namespace: str
    environment: str
    queue: str
    queue_id: str
    token: str
    permissions: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A token and the queue it is for. The names and the permissions are None or empty where no file gave them.

    `repr` hides the token.
    """

    queue_id: str
    token: Secret = field(repr=False)
    application: str | None = None
    namespace: str | None = None
    environment: str | None = None
    queue: str | None = None
    permissions: frozenset[str] = frozenset()

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, source: str = "credentials file") -> Self:
        """Read the JSON file that bootstrap wrote.

        Raise InvalidConfiguration, which names `source` and the rule, when it cannot be read, when others than its
        owner can access it, or when it is not what bootstrap writes. No message quotes the file.
        """
        try:
            content = read_secret_file(path)
        except UnusableFile as error:
            raise InvalidConfiguration(f"{source}: {error}") from None
        try:
            strict_json.parse(content, max_bytes=len(content))
            file = msgspec.json.decode(content, type=_File)
        except (InvalidJSON, msgspec.ValidationError):
            file = None
        if file is None:
            raise InvalidConfiguration(f"{source}: is not a credentials file")
        return cls(
            queue_id=_queue_id(file.queue_id, f"{source}: queue_id"),
            token=parse_token(file.token, f"{source}: token"),
            application=file.application,
            namespace=file.namespace,
            environment=file.environment,
            queue=file.queue,
            permissions=frozenset(file.permissions),
        )

    @classmethod
    def from_environment(cls, variables: Mapping[str, str]) -> Self:
        """Read ORBIT_CREDENTIALS_FILE; ORBIT_TOKEN (or ORBIT_TOKEN_FILE) and ORBIT_QUEUE_ID override what it says.

        The two together also do without the file. Raise InvalidConfiguration, which names the variable.
        """
        environment = Environment(variables)
        path = environment.optional("ORBIT_CREDENTIALS_FILE")
        queue_id = environment.optional("ORBIT_QUEUE_ID")
        try:
            token = environment.optional_secret("ORBIT_TOKEN")
        except SettingsError as error:
            raise InvalidConfiguration(str(error)) from None
        secret = None if token is None else parse_token(token, "ORBIT_TOKEN")
        if queue_id is not None:
            _queue_id(queue_id, "ORBIT_QUEUE_ID")
        if path is None:
            if secret is None or queue_id is None:
                raise InvalidConfiguration("ORBIT_CREDENTIALS_FILE: is not set, nor are ORBIT_TOKEN and ORBIT_QUEUE_ID")
            return cls(queue_id=queue_id, token=secret)
        loaded = cls.load(path, source="ORBIT_CREDENTIALS_FILE")
        return replace(loaded, queue_id=queue_id or loaded.queue_id, token=secret or loaded.token)


def parse_token(text: str, source: str) -> Secret:
    """Check a bearer token: 16 to 512 visible ASCII characters. Raise InvalidConfiguration, never quoting it."""
    if _TOKEN.fullmatch(text) is None:
        raise InvalidConfiguration(f"{source}: must be 16 to 512 visible ASCII characters")
    return Secret(text)


def _queue_id(text: str, source: str) -> str:
    try:
        return parse_id(text, source)
    except InvalidValue as error:
        raise InvalidConfiguration(str(error)) from None

"""Settings from the environment, validated before any I/O of the program itself.

A secret may be given as NAME or, so that it is in no process listing and no shell history, as NAME_FILE: the path of a
file that holds it and that only its owner can read. An empty variable counts as not set.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import Final

SECRET_FILE_BYTES: Final = 64 * 1024


class SettingsError(Exception):
    """A setting is missing or wrong. Names the variable and the rule, never the value; a command exits with 2."""

    def __init__(self, variable: str, reason: str) -> None:
        super().__init__(variable, reason)
        self.variable = variable
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.variable}: {self.reason}"


class UnusableFile(Exception):
    """A file cannot be taken for one that holds a secret; says why, as what the file is or does. Quotes nothing."""


class Environment:
    """Read-only access to a mapping such as `os.environ`; its repr shows nothing of it."""

    __slots__ = ("_variables",)

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables

    def __repr__(self) -> str:
        return "Environment(…)"

    def optional(self, name: str) -> str | None:
        """The variable's text, or None when it is not set or empty."""
        return self._variables.get(name) or None

    def text(self, name: str, default: str | None = None) -> str:
        """The variable's text, else `default`; raises SettingsError when there is neither."""
        value = self.optional(name)
        if value is None:
            value = default
        if value is None:
            raise SettingsError(name, "is not set")
        return value

    def optional_secret(self, name: str) -> str | None:
        """The secret in NAME or in the file that NAME_FILE names, or None when neither is set.

        Raises SettingsError when both are set, or when the file is not as `read_secret_file` wants it, is not UTF-8 or
        holds nothing. One newline at the end is dropped.
        """
        value = self.optional(name)
        path = self.optional(f"{name}_FILE")
        if path is None:
            return value
        if value is not None:
            raise SettingsError(name, f"and {name}_FILE are both set; set one of them")
        return _read_text(f"{name}_FILE", path)

    def secret(self, name: str) -> str:
        """As `optional_secret`, and raises SettingsError when neither variable is set."""
        value = self.optional_secret(name)
        if value is None:
            raise SettingsError(name, f"is not set, nor is {name}_FILE")
        return value


def read_secret_file(path: str | os.PathLike[str]) -> bytes:
    """Read a file that holds a secret.

    Raises UnusableFile when it cannot be read, can be accessed by others than its owner, is no regular file or is
    larger than 64 KiB. Opening a FIFO does not wait for its writer.
    """
    reason = ""
    data = b""
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            # Checked on the open file, so that nothing can be put in its place in between.
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise UnusableFile("is not a regular file")
            if mode & 0o077:
                raise UnusableFile("can be accessed by others than its owner; chmod 600 it")
            data = file.read(SECRET_FILE_BYTES + 1)
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
    if len(data) > SECRET_FILE_BYTES:
        reason = f"is larger than {SECRET_FILE_BYTES} bytes"
    if reason:
        raise UnusableFile(reason)
    return data


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _read_text(variable: str, path: str) -> str:
    try:
        text = read_secret_file(path).decode()
    except UnusableFile as error:
        raise SettingsError(variable, f"names a file that {error}") from None
    except UnicodeDecodeError:
        raise SettingsError(variable, "names a file that is not UTF-8") from None
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise SettingsError(variable, "names a file that holds nothing")
    return text

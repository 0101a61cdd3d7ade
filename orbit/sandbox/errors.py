"""What the sandbox raises. Every message is a sentence for the person at the terminal and holds no secret."""

from __future__ import annotations


class SandboxError(Exception):
    """The sandbox could not be built, started or stopped."""


class NoMySQL(SandboxError):
    """No way to a real MySQL worked; the message names each way and what it said."""

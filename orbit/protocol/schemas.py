"""The published JSON Schemas of the subprotocols, as the bytes that the package carries."""

from __future__ import annotations

from importlib.resources import files


def events_schema() -> bytes:
    """Return the schema of `pulse.events.v1`: JSON Schema 2020-12, UTF-8."""
    return _read("events.schema.json")


def worker_schema() -> bytes:
    """Return the schema of `pulse.worker.v1`: JSON Schema 2020-12, UTF-8."""
    return _read("worker.schema.json")


def _read(name: str) -> bytes:
    return files("orbit.protocol").joinpath(name).read_bytes()

"""Orbit for Python: a durable task platform, its SDK and its wire protocols.

The packages form layers that import-linter enforces; `docs/architecture.md` draws them.
"""

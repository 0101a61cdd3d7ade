"""What crosses the wire: values, JSON, frames and sessions.

Everything here is pure: no I/O, no clock, no driver. Both sides of every connection, the tests' fake peers and the
receiver use these same modules, so that no rule of the wire exists twice.
"""

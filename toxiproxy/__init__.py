"""A fault proxy for MySQL and for WebSockets, for tests and demonstrations only.

It imports nothing of the product, and no wheel holds it. See docs/fault-proxy.md.
"""

from __future__ import annotations

from toxiproxy.faults import (
    Armed,
    CutAfterCommit,
    CutAfterStatement,
    CutAtFrame,
    CutBeforeCommit,
    CutInHandshake,
    DarkLink,
    DelayCommitOk,
    DropCommitOk,
    DropFrame,
    End,
    Fault,
    HoldCommit,
    HoldFrame,
    RefuseConnect,
    ReplaceCommitOk,
    SilentConnect,
    UnfiredFault,
    UnrecognisedTraffic,
)
from toxiproxy.frame_relay import FrameRelay
from toxiproxy.journal import Entry, Journal, Point
from toxiproxy.mysql_proxy import MySQLProxy
from toxiproxy.transactions import TransactionTrace

__all__ = [
    "Armed",
    "CutAfterCommit",
    "CutAfterStatement",
    "CutAtFrame",
    "CutBeforeCommit",
    "CutInHandshake",
    "DarkLink",
    "DelayCommitOk",
    "DropCommitOk",
    "DropFrame",
    "End",
    "Entry",
    "Fault",
    "FrameRelay",
    "HoldCommit",
    "HoldFrame",
    "Journal",
    "MySQLProxy",
    "Point",
    "RefuseConnect",
    "ReplaceCommitOk",
    "SilentConnect",
    "TransactionTrace",
    "UnfiredFault",
    "UnrecognisedTraffic",
]

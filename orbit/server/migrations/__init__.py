"""The platform's schema as a line of revisions, in the order in which databases get them.

MySQL commits every DDL statement by itself, so a revision holds exactly one, and one that may be run again: a crash
between the statement and the note in `alembic_version` leaves a database whose next run repeats it. Revisions are
history and are never edited; `tables.py` is what they add up to, and a test compares the two. There are no downgrades:
a restored backup is the way back.
"""

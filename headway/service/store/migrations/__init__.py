"""The schema's history: one file a change, in `versions`, applied by Alembic at start.

A change is a new file `rNNNN_what.py` with `revision = "NNNN"` and `down_revision` the one before;
a file that has been released is never edited. 0001 is accounts', 0002 the ledger's.
"""

"""The files of a Raft replica.

The log over a store, hard state, configurations, snapshots. These modules import `raft` and `store`
and no connection; the shell of the replica and offline tools import them.
"""

"""Comparison of the replicas' states: digests at points of the log, and the fence of a node that
differs from a majority.

These modules import the driver and the state; a Raft node assembles them.
"""

"""The calls of AdminService that belong to a node, not to its broker: one file a replication mode.

These modules import monitoring, the broker and replication; the nodes make them.
"""

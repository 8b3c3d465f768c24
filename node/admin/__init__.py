"""The calls of AdminService that belong to a node, not to its broker: one file a replication mode.

These modules import monitoring and replication, and the node as a type; the nodes make them.
"""

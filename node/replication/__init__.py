"""Replication of the log.

Raft in `raft`, master-slave in `ha`, and what both share beside them. These modules import the
state, the peer link and the store; they never import the broker, which asks them through
`node.broker.core.ports`. The nodes at the top, the name server and offline tools import them.
"""

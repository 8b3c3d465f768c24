"""Replication of the log.

Raft in `raft`, master-slave in `ha`, and what both share beside them. `replication.Replication` is
what the rest of a node knows of either; `contract` has the types that both fill in. These modules
import the state, the peer link and the store; the broker, the name server, offline tools and the
modules at the top of `node` import them.
"""

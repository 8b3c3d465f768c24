"""Replication of the log.

Raft in `raft`, master-slave in `ha`, and what both share beside them. `replication.Replication`
lists what differs; `contract` has the types that both fill in, and the broker knows only those.
`raft.receipts` and `ha.receipts` decide what a receipt promises; `node.broker.append.receipts`
writes the promise into the answer. These modules import the state, the peer link and the store; the
broker, admin, monitoring, the name server, offline tools and the modules at the top of `node`
import them.
"""

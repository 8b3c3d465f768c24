"""Replication of the log.

Raft in `raft`, master-slave in `ha`, and what both share beside them. `admin_parts.Replication`
lists what differs, `admin_parts.NodeParts` what a replica gets of its node; `node.contract` has
the types that the broker knows. `raft.receipts` and `ha.receipts` decide what a receipt promises;
`node.broker.append.receipts` writes the promise into the answer. These modules import the state,
the peer link, the store and monitoring; `admin_parts` and `ha.local_broker` import the broker and
the name server. The modules at the top of `node` and offline tools import them.
"""

"""The rules of the protocol, one file each.

Elections, replication, reads, membership, recovery. A rule changes the state of a replica and
imports `raft.state` and other rules; only the core, the pump, the shell and the admin calls of a
node, and the simulator import a rule.
"""

"""The ledger.

Entries with a chain of checksums, physically equal on all replicas. These modules import `log`,
`record` and `files`; derived files, stores, checks and a node's Raft shell import them.
"""

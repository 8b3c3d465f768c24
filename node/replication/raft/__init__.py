"""The asyncio shell of one Raft replica.

Driver, snapshots, repair, maintenance, and `codec`, which makes frames of Raft's messages;
`assembly` makes a replica of them. These modules import `raft.pump`, the storage beside them and
the peer link; the process of a node calls `assembly`.
"""

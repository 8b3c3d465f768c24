"""The asyncio shell of one Raft replica.

Driver, snapshots, repair, maintenance, and `codec`, which makes frames of Raft's messages. These
modules import `raft.pump`, the storage beside them and the peer link; a Raft node assembles them.
"""

"""Master-slave replication.

The shell of one replica around the rules in `core`; `core.wire` has the frames of its link. These
modules import their storage, their link and the state. The core and the storage import nothing of
`raft`; the shell and the link import its ids, roles and errors, and share maintenance and syncs
with raft mode. `assembly` makes a replica of them, and the process of a node calls it.
"""

"""Master-slave replication.

The shell of one replica around the rules in `core`; `core.wire` has the frames of its link. These
modules import their storage, their link and the state. Neither the core nor the storage may know
`raft`: the two modes share the store and no other code. A master-slave node assembles them.
"""

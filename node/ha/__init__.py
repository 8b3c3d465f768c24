"""Master-slave replication: roles, fence and wire, without sockets, files of the log or a clock.

Must not know `raft`: the two modes share the store and nothing else.
"""

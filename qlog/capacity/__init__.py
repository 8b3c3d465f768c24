"""`qlog plan`, `qlog fleet`.

The size of a cluster for a load, and how a fleet of hosts fares under faults. The commands import
`quorumlog.capacity` and shared parts of the command line; `formats` reads sizes from `node`, `raft`
and `store`; the list of commands names them as text.
"""

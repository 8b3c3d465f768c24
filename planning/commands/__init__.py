"""`qlog plan`, `qlog fleet`, `qlog cluster rebalance`, `qlog bench calibrate`.

The size of a cluster for a load, how a fleet of hosts fares under faults, and what this machine
does. The commands import `planning.capacity`, `bench` and shared parts of the command line;
`formats` reads sizes from `node`, `raft` and `store`; the lists of commands in `qlog` name them as
text.
"""

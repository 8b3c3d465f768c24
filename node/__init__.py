"""One process of a cluster: the only one that joins `raft` and `store`.

The modules at the top hold the life of the process and put a node together: `node` the whole,
`contract` what the broker sees of a replica, `metrics` the tables of metrics. Each folder below is
a layer that imports only lower layers (`pyproject.toml` has their order). The command line, a
benchmark, simulators and tests import it.
"""

"""One process of a cluster: the only one that joins `raft` and `store`.

The modules at the top hold the life of the process and put a node together: `node` the whole,
`raft_node` and `ha_node` the two ways to replicate (`node.replication.replication`). Each folder
below is a layer that imports only lower layers (`pyproject.toml` has their order). The command
line, a benchmark, simulators and tests import it.
"""

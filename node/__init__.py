"""One process of a cluster: the only package that knows both `raft` and `store`.

The modules at the top hold the life of the process and assemble the nodes of both modes. Each
folder below is a layer that imports only lower layers (`pyproject.toml` has their order). Only the
command line and tests import a node.
"""

"""One process of a cluster.

The only package that knows both `raft` and `store`. At the top stand the life of the process and
the nodes of both modes, put together; each folder below is a layer that imports what is under it
(`pyproject.toml` has their order). Only the command line and tests import a node.
"""

"""One process of a cluster: the only package that knows both `raft` and `store`."""

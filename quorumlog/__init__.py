"""QuorumLog: a message log that is replicated to a quorum before it says so.

This package is what users import: the client and the command line. It imports no server code
(store, raft, node), except for single commands of `quorumlog.cli` that work on local files.
"""

__version__ = "0.1.0"
__all__ = ["__version__"]

"""The replicated state.

Commands taken over, tables, checkpoints and images. These modules import settings, errors and the
store and no replication; broker, replication and name server import them.
"""

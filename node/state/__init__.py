"""The replicated state.

Application of commands, tables, checkpoints and images. These modules import settings, errors and
the store and no replication; broker, replication and name server import them.
"""

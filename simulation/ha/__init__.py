"""A whole master-slave group in one thread, driven by one seed, with referees.

The simulator runs the real machine of `node.replication.ha.core`, and imports nothing else of a
node. Tests import it, and `tests.hours` runs it as a command.
"""

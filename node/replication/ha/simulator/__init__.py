"""A whole master-slave group in one thread, driven by one seed, with referees.

The simulator runs the real machine of `core`; it imports nothing else of a node, and only tests
import it.
"""

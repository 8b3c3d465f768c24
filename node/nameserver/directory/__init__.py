"""The directory: the replicated state of the name server as a pure, deterministic machine.

These modules import errors and limits and no transport; the replica, the service and the calls
import them.
"""

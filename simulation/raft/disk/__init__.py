"""The disk of a simulated node.

A log that forgets unsynced writes, and its image. These modules import `raft` and the
pump's port to the log; the simulated world imports them.
"""

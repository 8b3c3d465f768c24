"""The disk of a simulated node.

A log that forgets what was not synced, its image, its damage. These modules import `raft` and the
pump's seam to the log; the simulated world imports them.
"""

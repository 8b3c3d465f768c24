"""Planted faults.

The changes, and the hunt that proves that a check notices each. These modules import the runner of
the simulator; only its command line and tests import them.
"""

"""Planted faults.

What each changes, and the hunt that proves that somebody notices. They import the runner of the
simulator; only its command line and tests import them.
"""

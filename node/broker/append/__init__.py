"""Appends.

From a client's batch to its receipt, the broker's own entries, and commands. These modules import
`core` and `records`; every part of the broker that writes imports them.
"""

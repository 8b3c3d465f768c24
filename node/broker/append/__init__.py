"""Appends.

From a client's batch to its receipt, and the broker's own entries. These modules import
`core` and `records`; every part of the broker that writes imports them.
"""

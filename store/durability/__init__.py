"""Durability: what is durable and how that is known.

Flush, durable mark, checkpoint, and the use of a directory. These modules import derived files and
below; stores, checks and nodes import them.
"""

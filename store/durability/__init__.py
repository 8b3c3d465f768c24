"""What is durable and how that is known.

Flush, durable mark, checkpoint, and who uses a directory. These modules import derived files and
below; stores, checks and nodes import them.
"""

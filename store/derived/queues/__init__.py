"""Consume queues.

From queue and offset to a position in the log, each block with a checksum. These modules import
records, the log and files, and never the key index; dispatch, mending and reads import them.
"""

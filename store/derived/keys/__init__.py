"""The key index.

From a key to positions in the log, each block with a checksum. These modules import records, files
and the block sums of queues; dispatch, mending and reads import them.
"""

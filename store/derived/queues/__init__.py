"""Consume queues.

From queue and offset to a position in the log, each block with a checksum. `consume_queue`
compares each block with its checksum from `unit_sums` and hands a wrong block to
`store.derived.unit_mend`.
These modules import records, the log and files, and never the key index; dispatch, mending and
reads import them.
"""

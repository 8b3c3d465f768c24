"""Maintenance of a store.

Deletion of old files, and the log read again against its checksums. These modules import logs and
the ledger; stores import them, and a node runs what they offer.
"""

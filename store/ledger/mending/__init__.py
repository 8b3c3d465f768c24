"""Mending: how damage in a ledger is found and repaired.

Damage found, bytes of peers proved and written. These modules import the ledger beside them; the
store, repair at start and fsck import them.
"""

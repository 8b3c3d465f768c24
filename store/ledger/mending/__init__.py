"""What is lost in a ledger and how it is put back.

Damage found, bytes of peers proved and written. These modules import the ledger beside them; the
store, repair at start and fsck import them.
"""

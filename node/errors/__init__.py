"""Every error of a node itself, by subject, and the translation of all errors for clients.

These modules import `raft` and `store` for their errors and nothing of a node; every folder of a
node imports them.
"""

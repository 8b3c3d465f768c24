"""Every error of a node itself, by subject, and the translation of all errors for clients.

`reference` writes docs/errors.md from its list of modules; a new module of errors needs a place in
that list. These modules import `raft` and `store` for their errors and nothing of a node; every
folder of a node imports them.
"""

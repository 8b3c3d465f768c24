"""Logs of records.

The interface of any log, the plain commit log, and its shipped form. These modules import `record`
and `files`; the ledger, derived files and whole stores import them.
"""

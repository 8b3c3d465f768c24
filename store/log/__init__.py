"""Logs of records.

What any log can be asked, the plain commit log, and its shipped form. These modules import `record`
and `files`; the ledger, derived files and whole stores import them.
"""

"""Looks at a store directory without a server.

Content, findings, and what to do about them. Start with `check` (every byte, read-only), `inspect`
(a summary), `plan` (what a repair would do and lose) and `repair` (does it). All modules here work
on files that no process has open. The modules import the engine; the command line, repair at start
and tests import them.
"""

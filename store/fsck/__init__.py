"""Looks at a store directory without a server.

What is there, what is wrong, what to do about it. Start with `check` (every byte, read-only),
`inspect` (a summary), `plan` (what a repair would do and lose) and `repair` (does it). Everything
here works on files that nobody has open. These modules import the engine; the command line, repair
at start and tests import them.
"""

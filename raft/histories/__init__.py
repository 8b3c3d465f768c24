"""Histories of what clients did and saw, and the checkers that judge them.

They import the errors of `raft` and nothing else, so that the simulator, the fault suites and
`pipeline` use them as a library.
"""

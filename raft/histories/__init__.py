"""Histories of clients' calls and answers, and the checkers that judge them.

These modules import the errors of `raft` and nothing else, so that the simulator, the fault suites
and `pipeline` use them as a library.
"""

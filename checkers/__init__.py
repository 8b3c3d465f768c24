"""Histories of clients' calls and answers, and the checkers that judge them.

These modules import the errors of `raft` and nothing else, so that the simulators, the fault suites
and `pipeline` use them as a library.
"""

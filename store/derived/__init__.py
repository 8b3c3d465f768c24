"""Derived files: what can be built again from the log.

Queues and key index, their dispatch, their checks and repair. These modules import the logs and the
records; opening, reads and whole stores import them.
"""

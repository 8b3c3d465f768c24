"""Derived files: what can be built again from the log.

Queues and key index, their dispatch, their checks and repair. `guard` starts repairs: `unit_mend`
repairs queues, `key_mend` repairs key indexes; a pass compares both with the log. These modules
import the logs and the records; opening, reads and whole stores import them.
"""

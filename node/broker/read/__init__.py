"""Reads.

Pulls, queries, the trace of one message, and the filters of consumers. These modules import `core`,
the settings of groups and the message sizes of `append`; pop imports the filters, the face of the
broker the rest.
"""

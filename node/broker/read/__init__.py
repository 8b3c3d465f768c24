"""Reads.

Pulls, queries, the way of one message, and the filters of consumers. These modules import `core`,
the settings of groups and what the broker knows of sizes; pop imports the filters, the face the
rest.
"""

"""One replica of the name server.

PySyncObj held to our rules, its journal, its dumps, its lives. These modules import the directory
and files; only the service imports them.
"""

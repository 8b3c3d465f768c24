"""Commands that work on this machine.

Run a node or a local cluster, inspect stores, restore. They and `qlog nameserver` are the only ones
that import server code, when they are used; the list of commands names them as text.
"""

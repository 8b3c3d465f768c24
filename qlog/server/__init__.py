"""Commands that work on this machine.

Run a node or a local cluster, inspect stores, restore. These commands, `qlog nameserver` and `qlog
plan` import server code, when they are used; the list of commands names them as text.
"""

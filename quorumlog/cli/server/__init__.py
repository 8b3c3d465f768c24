"""Commands that work on this machine.

Run a node or a local cluster, look into stores, restore. They are the only ones that import server
code, when they run; the list of commands names them as text.
"""

"""Work on the directories of nodes that do not run.

A restore, terms lowered, seals. These modules import storage, state and settings and open no port;
the command line runs them, and a node asks for seals when it starts.
"""

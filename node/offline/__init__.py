"""Work on the directories of nodes that do not run.

A restore. These modules import storage, state and settings and open no port; the command line runs
them.
"""

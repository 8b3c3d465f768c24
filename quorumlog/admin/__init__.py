"""Administration of a cluster.

Topics, groups, members, leadership, and the status of nodes. These modules import consume,
transactions and cluster for their values and calls; the clients and the command line import them.
"""

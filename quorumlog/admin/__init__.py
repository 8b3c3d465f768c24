"""Running a cluster.

Topics, groups, members, leadership, and what nodes say of themselves. These modules import produce,
consume and cluster for their values and calls; the clients and the command line import them.
"""

"""The calls of AdminService that are a node's and not the broker's, one file for each way to
replicate. These modules import monitoring and replication, and the node as a type; the nodes
make them.
"""

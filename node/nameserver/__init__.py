"""The name server: which brokers exist, where topics live, which HA epochs were given out.

The modules at the top are the service inside a node: registration, control and the calls of
clients. These modules import the directory and the replica below, settings and state; services,
both ways to replicate and nodes import them.
"""

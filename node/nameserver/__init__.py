"""The name server.

Who the brokers are, where topics live, which HA epochs were given out. At the top stands the
service inside a node: registration, control and the calls of clients. These modules import the
directory and the replica below, settings and state; services and nodes import them.
"""

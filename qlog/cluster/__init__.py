"""Commands that show a cluster and change it.

Nodes, topics, groups, name server. These modules import the client, shared parts of the command
line and the output of messages; the list of commands names them as text.
"""

"""Calls of the RocketMQ protocol, a file a group.

Send, receive, ends of transactions, renewals. These modules import the protocol, the clients and
the forwarder; the service imports them.
"""

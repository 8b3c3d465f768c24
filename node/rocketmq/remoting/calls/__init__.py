"""The requests of the remoting protocol, by subject: each from ext fields to the broker and back.

These modules import the forwarder, the table of clients and the broker;
`node.rocketmq.remoting.service` imports them.
"""

"""Bytes and names of the remoting protocol: commands, codes, broker names and refusals.

These modules import frames and the errors of the node; the calls of `node.rocketmq.remoting` import
them.
"""

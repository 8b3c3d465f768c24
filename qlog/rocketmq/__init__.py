"""Commands about clusters of Apache RocketMQ.

These modules import the client, the remoting protocol of `node.rocketmq.remoting` and the records
of the store; the list of commands names them as text.
"""

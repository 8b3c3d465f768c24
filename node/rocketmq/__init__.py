"""RocketMQ 5 clients as they are.

`apache.rocketmq.v2.MessagingService` beside `quorumlog.v1`. Any node takes every call. What the
leader of a broker group has to do is sent on to it as it came, byte for byte, so nothing here
decides anything about data: the broker does. `service` is the way in, `forwarder` knows who leads.
These modules import the broker and how a call runs; monitoring and nodes import them.
"""

"""The front door for unmodified clients of RocketMQ: of version 5, and in `remoting` of all others.

`apache.rocketmq.v2.MessagingService` beside `quorumlog.v1`. Any node takes every call. A call for
the leader of a broker group is forwarded to it unchanged, byte for byte, so nothing here decides
anything about data: the broker does. `service` is the way in, `cluster` knows the leaders, `hold`
holds calls while no node leads. These modules import the broker and how a call runs; monitoring and
nodes import them.
"""

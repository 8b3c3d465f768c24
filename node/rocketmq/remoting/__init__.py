"""RocketMQ's remoting protocol: the classic clients, `mqadmin` and the tools around them.

Its frames share the framed port (`node.framed`), told apart by the kind of header. Any node takes
every call: what only the leader may answer is forwarded to it as it came, and held during an
election. These modules import the framed port, the gateway's view of the cluster
(`node.rocketmq.cluster`) and the broker; nodes import them.
"""

"""The part of a node that serves clients.

Append, read, topics, consumer groups. `broker.Broker` is the face that services call, one coroutine
per RPC, protobuf in and out. Each folder owns one subject, so what a new kind of consumer needs of
the leader is a folder like `pop`; `core` has what all share. The broker asks a
`node.contract.Driver`. No module here knows gRPC, sockets, threads or how the log is replicated;
everything runs on the loop. Services, `framed`, `rocketmq`, monitoring, the calls of AdminService
and nodes import the broker.
"""

from node.broker.broker import Broker
from node.broker.core.context import BrokerIdentity

__all__ = ["Broker", "BrokerIdentity"]

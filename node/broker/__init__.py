"""What a node does for clients: append, read, topics, consumer groups.

`broker.Broker` is the face that services call, one coroutine per RPC, protobuf in and out. Each
file owns one subject. Nothing here knows gRPC, sockets or threads; everything runs on the loop.
"""

from node.broker.broker import Broker
from node.broker.context import BrokerIdentity

__all__ = ["Broker", "BrokerIdentity"]

"""All peers by name: how to make one, and why it cannot be had here.

Owns the list and its order, which is the order of a run and of a table. Ours comes first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bench.peers import etcd, nats_jetstream, redis_streams, rocketmq
from bench.peers.etcd import EtcdPeer
from bench.peers.nats_jetstream import NatsPeer
from bench.peers.own import OwnPeer
from bench.peers.peer import Peer
from bench.peers.pysyncobj_dict import PySyncObjPeer
from bench.peers.redis_streams import RedisPeer
from bench.peers.rocketmq import RocketMqPeer

OWN: Final = "quorumlog"


@dataclass(frozen=True, slots=True)
class Entry:
    """One peer of the list."""

    make: Callable[[], Peer]
    why_missing: Callable[[], str | None]
    """A reason, or None if it can be started here."""


def _never() -> None:
    return None


ENTRIES: Final[dict[str, Entry]] = {
    OWN: Entry(OwnPeer, _never),
    "etcd": Entry(EtcdPeer, etcd.why_missing),
    "nats": Entry(NatsPeer, nats_jetstream.why_missing),
    "redis-wait1": Entry(RedisPeer, redis_streams.why_missing),
    "redis-wait2": Entry(lambda: RedisPeer(2), redis_streams.why_missing),
    "pysyncobj": Entry(PySyncObjPeer, _never),
    "rocketmq-dledger": Entry(lambda: RocketMqPeer("dledger"), rocketmq.why_missing),
    "rocketmq-master-slave": Entry(lambda: RocketMqPeer("master_slave"), rocketmq.why_missing),
}

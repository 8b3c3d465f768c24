"""All peers by name: how to make one, and the reason when it is not available here.

Owns the list and its order, which is the order of a run and of a table. Ours comes first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import quorumlog
from bench.peers import bookkeeper, etcd, kafka, nats_jetstream, rocketmq
from bench.peers.bookkeeper import BookKeeperPeer
from bench.peers.etcd import EtcdPeer
from bench.peers.installed import installed_version
from bench.peers.kafka import KafkaPeer
from bench.peers.nats_jetstream import NatsPeer
from bench.peers.own import OwnPeer
from bench.peers.own_remoting import OwnRemotingPeer
from bench.peers.peer import MeasuredPeer
from bench.peers.rocketmq import RocketMqPeer

OWN: Final = "quorumlog"


@dataclass(frozen=True, slots=True)
class ListedPeer:
    """One peer of the list."""

    make: Callable[[], MeasuredPeer]
    why_missing: Callable[[], str | None]
    """Returns a reason, or None if the peer can be started here."""
    version: Callable[[], str]
    """Returns the installed version; only called when the peer is available."""


def _never() -> None:
    return None


_ROCKETMQ_VERSION: Final = partial(installed_version, "rocketmq")

ENTRIES: Final[dict[str, ListedPeer]] = {
    OWN: ListedPeer(OwnPeer, _never, lambda: quorumlog.__version__),
    "quorumlog-remoting": ListedPeer(
        OwnRemotingPeer, rocketmq.why_missing, lambda: quorumlog.__version__
    ),
    "etcd": ListedPeer(EtcdPeer, etcd.why_missing, partial(installed_version, "etcd")),
    "nats": ListedPeer(NatsPeer, nats_jetstream.why_missing, partial(installed_version, "nats")),
    "kafka": ListedPeer(KafkaPeer, kafka.why_missing, partial(installed_version, "kafka")),
    "bookkeeper": ListedPeer(
        BookKeeperPeer, bookkeeper.why_missing, partial(installed_version, "bookkeeper")
    ),
    "rocketmq-dledger": ListedPeer(
        lambda: RocketMqPeer("dledger"), rocketmq.why_missing, _ROCKETMQ_VERSION
    ),
    "rocketmq-master-slave": ListedPeer(
        lambda: RocketMqPeer("master_slave"), rocketmq.why_missing, _ROCKETMQ_VERSION
    ),
}

"""All peers by name: how to make one, and the reason when it is not available here.

Owns the list and its order, which is the order of a run and of a table. Ours comes first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import quorumlog
from bench.peers.bookkeeper import BookKeeperPeer
from bench.peers.etcd import EtcdPeer
from bench.peers.installed import installed_version, why_missing
from bench.peers.kafka import KafkaPeer
from bench.peers.nats_jetstream import NatsPeer
from bench.peers.own import OwnPeer
from bench.peers.own_remoting import OwnRemotingPeer
from bench.peers.peer import MeasuredPeer
from bench.peers.rocketmq import RocketMqPeer

OWN: Final = "quorumlog"
_INSTALLED: Final[tuple[tuple[str, str, Callable[[], MeasuredPeer]], ...]] = (
    ("etcd", "etcd", EtcdPeer),
    ("nats", "nats", NatsPeer),
    ("kafka", "kafka", KafkaPeer),
    ("bookkeeper", "bookkeeper", BookKeeperPeer),
    ("rocketmq-dledger", "rocketmq", partial(RocketMqPeer, "dledger")),
    ("rocketmq-master-slave", "rocketmq", partial(RocketMqPeer, "master_slave")),
)
"""Name of a peer, and of what is installed for it."""


@dataclass(frozen=True, slots=True)
class ListedPeer:
    """One peer of the list."""

    make: Callable[[], MeasuredPeer]
    why_missing: Callable[[], str | None]
    """Returns a reason, or None if the peer can be started here."""
    version: Callable[[], str]
    """Returns the installed version; only called when the peer is available."""


def _own_version() -> str:
    return quorumlog.__version__


ENTRIES: Final[dict[str, ListedPeer]] = {
    OWN: ListedPeer(OwnPeer, lambda: None, _own_version),
    "quorumlog-remoting": ListedPeer(
        OwnRemotingPeer, partial(why_missing, "rocketmq"), _own_version
    ),
    **{
        name: ListedPeer(make, partial(why_missing, part), partial(installed_version, part))
        for name, part, make in _INSTALLED
    },
}

"""All peers by name: how to make one, and the reason when it is not available here.

Owns the list and its order, which is the order of a run and of a table. Ours comes first.
"""

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Final

import quorumlog
from bench.peers import bookkeeper, etcd, kafka, nats_jetstream, redis_streams, rocketmq
from bench.peers.bookkeeper import BookKeeperPeer
from bench.peers.etcd import EtcdPeer
from bench.peers.installed import installed_version
from bench.peers.kafka import KafkaPeer
from bench.peers.nats_jetstream import NatsPeer
from bench.peers.own import OwnPeer
from bench.peers.own_remoting import OwnRemotingPeer
from bench.peers.peer import MeasuredPeer
from bench.peers.pysyncobj_dict import PySyncObjPeer
from bench.peers.redis_streams import RedisPeer
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


def _said_by(*words: str) -> Callable[[], str]:
    """Return a function that finds the first version number in the output of a program."""

    def ask() -> str:
        said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30).stdout
        found = re.search(r"\d+(\.\d+)+", said)
        return found[0] if found else said.strip()

    return ask


_REDIS_VERSION: Final = _said_by("redis-server", "--version")
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
    "redis-wait1": ListedPeer(RedisPeer, redis_streams.why_missing, _REDIS_VERSION),
    "redis-wait2": ListedPeer(lambda: RedisPeer(2), redis_streams.why_missing, _REDIS_VERSION),
    "pysyncobj": ListedPeer(PySyncObjPeer, _never, lambda: version("pysyncobj")),
    "rocketmq-dledger": ListedPeer(
        lambda: RocketMqPeer("dledger"), rocketmq.why_missing, _ROCKETMQ_VERSION
    ),
    "rocketmq-master-slave": ListedPeer(
        lambda: RocketMqPeer("master_slave"), rocketmq.why_missing, _ROCKETMQ_VERSION
    ),
}

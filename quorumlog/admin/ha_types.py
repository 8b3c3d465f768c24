"""Results of the calls about a master-slave group: plain values with stable names.

Owns the shapes; must not know how calls are made.
"""

from dataclasses import dataclass

from quorumlog.admin.types import NodeDown
from quorumlog.records import values


@dataclass(frozen=True, slots=True)
class HaReplica:
    """Another replica, as the node that answered sees it; positions are -1 unless it serves."""

    node_id: int
    address: str
    is_connected: bool
    acked_position: int
    """The replica has synced everything below this position."""
    lag_size_bytes: int
    is_in_sync: bool
    """Whether the replica counts as a copy: it holds everything that readers see."""


@dataclass(frozen=True, slots=True)
class HaLoss:
    """The end of a log that is gone from it after a change of masters."""

    unix_ms: int
    epoch: int
    lo_position: int
    hi_position: int
    acked_hi_position: int
    """Appends that end in (lo, acked_hi] had been acknowledged, as far as the node knows."""
    is_exact: bool
    """Whether the node saw all of it; False: more or less may have been acknowledged."""
    record_count: int
    """Count of messages in the lost part; -1: the node never had them."""
    acked_record_count: int
    """Count of messages up to `acked_hi_position`; -1: unknown."""
    file: str
    """File to which the node moved the bytes; empty: it never had them."""


@dataclass(frozen=True, slots=True)
class HaStatus:
    """Status of its group as a node sees it; fields of HaStatusResponse in admin.proto."""

    group: str
    node_id: int
    replication: str
    role: str
    mode: str
    epoch: int
    master_id: int
    highest_epoch: int
    copies: int
    node_ids: tuple[int, ...]
    standing: str
    log_epoch: int
    first_position: int
    end_position: int
    durable_position: int
    confirm_position: int
    epoch_start_position: int
    in_sync: tuple[int, ...]
    replicas: tuple[HaReplica, ...]
    losses: tuple[HaLoss, ...]
    detail: str

    to_dict = values.to_dict


@dataclass(frozen=True, slots=True)
class HaGroup:
    """All nodes of a group at once."""

    nodes: tuple[HaStatus | NodeDown, ...]

    @property
    def master(self) -> HaStatus | None:
        """The node that serves in the newest epoch; a cut-off old master may still claim to."""
        masters = [n for n in self.nodes if isinstance(n, HaStatus) and n.role == "master"]
        return max(masters, key=lambda node: node.epoch, default=None)


@dataclass(frozen=True, slots=True)
class HaPromotion:
    """The master after a promotion, its epoch, and where the epoch begins in the log."""

    epoch: int
    master_id: int
    start_position: int

"""What calls about a master-slave group return: plain values with stable names.

Owns the reading of each from the wire; must not know how calls are made.
"""

from dataclasses import asdict, dataclass
from typing import Any

from quorumlog.admin.types import NodeDown
from quorumlog.pb import admin_pb2


@dataclass(frozen=True, slots=True)
class HaReplica:
    """Another replica, as the node that answered sees it; positions are -1 unless it serves."""

    node_id: int
    address: str
    is_connected: bool
    acked_position: int
    """It holds everything below, synced."""
    lag_size_bytes: int
    is_in_sync: bool
    """It counts as a copy, and holds everything that readers see."""


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
    """False: the node did not see all of it, more or less may have been acknowledged."""
    record_count: int
    """Messages in it; -1: the node never had them."""
    acked_record_count: int
    """Those up to `acked_hi_position`; -1: unknown."""
    file: str
    """Where the node set the bytes aside; empty: it never had them."""


@dataclass(frozen=True, slots=True)
class HaStatus:
    """What a node knows of its group; the fields are those of HaStatusResponse in admin.proto."""

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

    @classmethod
    def of(cls, pb: admin_pb2.HaStatusResponse) -> "HaStatus":
        """Read it from the wire."""
        values: dict[str, Any] = {name: getattr(pb, name) for name in cls.__slots__}
        for name in ("node_ids", "in_sync"):
            values[name] = tuple(values[name])
        values["replicas"] = tuple(_read(HaReplica, one) for one in pb.replicas)
        values["losses"] = tuple(_read(HaLoss, one) for one in pb.losses)
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values under stable names, for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class HaGroup:
    """All nodes of a group at once."""

    nodes: tuple[HaStatus | NodeDown, ...]

    @property
    def master(self) -> HaStatus | None:
        """Who serves in the newest epoch; a cut-off old master may still believe it does."""
        masters = [n for n in self.nodes if isinstance(n, HaStatus) and n.role == "master"]
        return max(masters, key=lambda node: node.epoch, default=None)


@dataclass(frozen=True, slots=True)
class HaPromotion:
    """Who is master now, in which epoch, and where that begins in the log."""

    epoch: int
    master_id: int
    start_position: int


def _read(kind: Any, pb: Any) -> Any:
    return kind(**{name: getattr(pb, name) for name in kind.__slots__})

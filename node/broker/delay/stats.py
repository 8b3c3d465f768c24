"""Counters of delayed messages, and how many are held."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DelayStats:
    """Counters (`_total`) since the start of the process, and levels at this moment."""

    held_count: int
    """Held messages of the cluster, as far as readers of this node see them."""
    undeliverable_count: int
    """Messages of the cluster ever sent to rmq_sys_undeliverable: their own topic took none."""
    delivered_total: int
    """Messages delivered by this node as the leader; cancelled ones do not count."""
    lateness_ms_total: int
    """Sum over delivered messages of the time from the due time to the commit of the delivery."""
    cancelled_total: int
    failed_total: int
    """Deliveries that could not be written, and were tried again."""
    missing_total: int
    """Messages that the log did not have any more: lost by damage."""

"""What was counted of delayed messages, and how many are held."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DelayStats:
    """Counters (`_total`) since the start of the process, and levels at this moment."""

    held_count: int
    """Of the cluster, as far as readers of this node see it."""
    undeliverable_count: int
    """Ever, of the cluster: in rmq_sys_undeliverable, because their own topic takes no messages."""
    indexed_count: int
    """Held messages whose time this node has in memory: the leader's are all of them."""
    delivered_total: int
    """By this node, as the leader; cancelled ones do not count."""
    lateness_ms_total: int
    """Of these, from the moment each was due to the commit of its delivery, added up."""
    cancelled_total: int
    failed_total: int
    """Deliveries that could not be written, and were tried again."""
    missing_total: int
    """Messages that the log did not have any more: damage, and lost."""

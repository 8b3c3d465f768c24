"""The metrics of master-slave mode; `node.metrics` puts them beside all others."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from node.monitoring.metric import Table, counter, gauge
from node.replication.ha.driver import HaDriver
from node.replication.ha.report import SlaveReport


class HaFacts(NamedTuple):
    """What a driver of master-slave mode says of its machine."""

    driver: HaDriver
    slaves: list[SlaveReport]
    """The slaves that have acked something."""
    stats: Mapping[str, int]


METRICS: Final[Table[HaFacts]] = {
    "waiting_appends": gauge("Appends whose caller waits for the commit.",
        lambda h: h.stats["waiters"]),
    "ha_waiting_appends_limit": gauge("Appends that may wait for copies: above it calls get busy.",
        lambda h: h.stats["waiters_max"]),
    "ha_window_bytes": gauge("Limit of bytes sent to a slave and not yet acked.",
        lambda h: h.driver.group.window_size_bytes),
    "ha_in_sync_replicas": gauge("Master only: replicas with all that readers see.",
        lambda h: len(h.driver.in_sync())),
    "ha_copies": gauge("How many a sync master needs of these.", lambda h: h.driver.group.copies),
    "follower_match_index": gauge("Leader only: last entry a node has.",
        lambda h: {str(s.replica_id): s.acked - 1 for s in h.slaves}, "node_id"),
    "ha_slave_lag_bytes": gauge("Master only: what a slave has not synced.",
        lambda h: {str(s.replica_id): s.lag_size_bytes for s in h.slaves}, "node_id"),
    "ha_cuts": counter("Times that the end of this log was cut off and set aside.",
        lambda h: h.stats.get("cuts", 0)),
    "ha_cut_bytes": counter("Bytes of these.", lambda h: h.stats.get("cut_size_bytes", 0)),
    "ha_bindings_refused": counter("Epochs refused: this node is bound otherwise.",
        lambda h: h.stats.get("bindings_refused", 0)),
    "ha_promises_refused": counter("Epoch numbers that another master had already.",
        lambda h: h.stats.get("promises_refused", 0)),
    "ha_violations": counter("Frames that could not be meant; the link was closed.",
        lambda h: h.stats.get("violations", 0)),
    "ha_epoch_jumps": counter("Epochs refused, since no promotions explain them.",
        lambda h: h.stats.get("epoch_jumps", 0)),
    "ha_advice_refused": counter("Proposals of a controller that were impossible.",
        lambda h: h.stats.get("advice_refused", 0) + h.driver.advice_refused_count),
    "ha_waits_for_room": counter("Transfers that waited for room on this disk.",
        lambda h: h.driver.inbound.no_room_count),
    "ha_images_failed": counter("Images of the state that could not be made here.",
        lambda h: h.driver.inbound.image_sender.failed_count),
    "ha_apply_retries": counter("Decided batches not shown: no room for queues.",
        lambda h: h.driver.apply_retry_count),
    "ha_losses": gauge("Losses known here, at most the newest hundred: qlog ha status.",
        lambda h: len(h.driver.log.losses.losses)),
}  # fmt: skip
"""The machine of master-slave mode and its driver."""

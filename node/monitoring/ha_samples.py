"""Metrics of a master-slave replica; names and texts are in `node.monitoring.metrics`.

Owns the source of each value.
"""

from __future__ import annotations

from collections.abc import Iterator

from node.replication.contract import Sample
from node.replication.ha.driver import HaDriver


def ha_samples(driver: HaDriver) -> Iterator[Sample]:
    """Yield the samples of the machine and its driver that only master-slave mode has."""
    report, stats = driver.report(), driver.machine.stats()
    yield "waiting_appends", (), stats["waiters"]
    yield "ha_waiting_appends_limit", (), stats["waiters_max"]
    yield "ha_window_bytes", (), driver.group.window_size_bytes
    yield "ha_in_sync_replicas", (), len(report.in_sync)
    yield "ha_copies", (), driver.group.copies
    for slave in report.slaves:
        if slave.acked >= 0:
            label = (str(slave.replica_id),)
            yield "follower_match_index", label, slave.acked - 1
            yield "ha_slave_lag_bytes", label, slave.lag_size_bytes
    for name, metric in _NAMES.items():
        yield metric, (), stats.get(name, 0)
    refused = stats.get("advice_refused", 0) + driver.promotion.advice_refused_count
    yield "ha_advice_refused", (), refused
    yield "ha_waits_for_room", (), driver.inbound.no_room_count
    yield "ha_images_failed", (), driver.inbound.image_sender.failed_count
    yield "ha_apply_retries", (), driver.apply_retry_count
    yield "ha_losses", (), len(driver.losses.losses)


_NAMES = {
    "cuts": "ha_cuts",
    "cut_size_bytes": "ha_cut_bytes",
    "bindings_refused": "ha_bindings_refused",
    "promises_refused": "ha_promises_refused",
    "violations": "ha_violations",
    "epoch_jumps": "ha_epoch_jumps",
}

"""The bytes and the rate of one group: what a message costs, and what limits a group.

Owns the sizes for a demand and the limit of each resource of a group. Must not know how many groups
there are.
"""

from dataclasses import dataclass
from typing import Final

from planning.capacity.calibration import Calibration
from planning.capacity.demand import Demand, DemandError
from planning.capacity.figure import CapacityFigure, amount, counted, figures, number
from planning.capacity.formats import FormatSizes

FRAME_RATIO: Final = 1538 / 1448
"""Bytes on an Ethernet for each byte of TCP: of 1538 with preamble and gap 1448 are data (MTU 1500,
time stamps on)."""


@dataclass(frozen=True, slots=True)
class MessageSizes:
    """The bytes of a message for a demand. Shares of a batch are divided by its messages."""

    record: int
    entry: int
    """Of a whole batch."""
    log: float
    """Of a message in the log: its share of the entry."""
    derived: float
    """Of a message in queues, indexes and checksums."""

    @classmethod
    def of(cls, demand: Demand, formats: FormatSizes) -> "MessageSizes":
        """Compute the sizes. Raises DemandError for a batch that no entry holds."""
        record = formats.record_size_bytes(
            body=demand.body_size_bytes,
            topic=demand.topic_size_bytes,
            properties=demand.properties_size_bytes,
        )
        entry = formats.entry_size_bytes(record, demand.batch_count)
        if entry > formats.batch_size_bytes_max:
            room = formats.batch_size_bytes_max - formats.entry_size_bytes(record, 0)
            fewer = f"--batch {room // record} or less, or " if room >= record else ""
            raise DemandError(
                f"a batch of {demand.batch_count} messages has {entry} bytes",
                f"the largest entry has {formats.batch_size_bytes_max}",
                f"use {fewer}smaller bodies",
            )
        derived = formats.derived_size_bytes(demand.batch_count, demand.key_count)
        return cls(record, entry, entry / demand.batch_count, derived / demand.batch_count)

    def figures(self, demand: Demand, formats: FormatSizes) -> list[CapacityFigure]:
        """Return the sizes with their formulas."""
        d, f, count = demand, formats, demand.batch_count
        record = (
            f"fields {f.record_size_bytes_min} B + topic {d.topic_size_bytes} B + properties "
            f"{d.properties_size_bytes} B + body {d.body_size_bytes} B"
        )
        entry = (
            f"header {f.entry_header_size_bytes} B + record of the producer "
            f"{f.command_record_size_bytes} B + {count} x {self.record} B"
        )
        derived = (
            f"{(count + 1) / count:.4g} queue units of {f.queue_unit_size_bytes} B + "
            f"{f.index_unit_size_bytes} B of ledger index / {count} + "
            f"{counted(d.key_count, 'keys')} of {f.key_entry_size_bytes} B and their slots + "
            "checksums"
        )
        return figures(
            "size",
            record_size_bytes=(self.record, record),
            entry_size_bytes=(self.entry, entry),
            log_bytes_per_msg=(self.log, f"entry {self.entry} B / {count}"),
            derived_bytes_per_msg=(self.derived, derived),
        )


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """The rate of one group by resource, in messages a second, and the one that limits."""

    figures: tuple[CapacityFigure, ...]

    @property
    def bottleneck(self) -> CapacityFigure:
        """The smallest of the limits."""
        return min(self.figures, key=_rate)

    @property
    def msgs_per_s(self) -> float:
        """The rate of a group at full use."""
        return _rate(self.bottleneck)


def _rate(figure: CapacityFigure) -> float:
    assert figure.value is not None, f"{figure.name} has no value"
    return figure.value


def group_limits(
    demand: Demand, sizes: MessageSizes, calibration: Calibration, formats: FormatSizes
) -> GroupLimits:
    """Return what each resource lets one group take."""
    count, body, consumers = demand.batch_count, demand.body_size_bytes, demand.consumer_count
    batch, leader = calibration.batch_cost, calibration.leader_cost
    append_s = leader.seconds(count, count * body) / count
    disk = calibration.disk_write_bytes_per_s
    wait_s = demand.round_trip_ms / 1e3 + calibration.sync_s
    limits = figures(
        "rate",
        limit_appends_msgs_per_s=(
            batch.msgs_per_s(count, body),
            f"{counted(count, 'messages')} / ({batch.formula(count, body)}): a group with its "
            "client, as measured",
        ),
        limit_leader_core_msgs_per_s=(
            1 / (append_s + consumers * calibration.read_cpu_s),
            f"1 core / ({append_s * 1e6:.4g} us an append + {counted(consumers, 'consumers')} x "
            f"{calibration.read_cpu_s * 1e6:.4g} us)",
        ),
        limit_disk_msgs_per_s=(
            disk / (2 * sizes.log + sizes.derived),
            f"{amount(disk, 'B/s')} / (2 x {number(sizes.log)} B of log, for files are filled with "
            f"zeros ahead, + {number(sizes.derived)} B derived)",
        ),
        limit_network_msgs_per_s=_network(demand, sizes),
        limit_window_msgs_per_s=(
            formats.window_size_bytes / wait_s / sizes.log,
            f"window of {amount(formats.window_size_bytes, 'B')} / (round trip "
            f"{number(demand.round_trip_ms)} ms + sync {number(calibration.sync_s * 1e3)} ms) / "
            f"{number(sizes.log)} B",
        ),
    )
    return GroupLimits(tuple(limits))


def _network(demand: Demand, sizes: MessageSizes) -> tuple[float, str]:
    followers, rate = demand.copies - 1, demand.host.network_bytes_per_s
    sent = followers * sizes.log + demand.consumer_count * sizes.record
    received = float(sizes.record)
    busiest = max(sent, received) * FRAME_RATIO
    words = (
        f"({counted(followers, 'followers')} x {number(sizes.log)} B + "
        f"{counted(demand.consumer_count, 'consumers')} x {sizes.record} B)"
        if sent >= received
        else f"{sizes.record} B received"
    )
    words = f"{amount(rate, 'B/s')} / ({words} x {FRAME_RATIO:.4g} for frames)"
    return rate / busiest, words

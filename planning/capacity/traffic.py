"""The bytes and the rate of one group: what a message costs, and what limits a group.

Owns the sizes for a demand and the limit of each resource of a group. Must not know how many groups
there are.
"""

from dataclasses import dataclass
from typing import Final

from planning.capacity.calibration import Calibration
from planning.capacity.demand import Demand, DemandError
from planning.capacity.figure import CapacityFigure, amount, number
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
            f"{f.index_unit_size_bytes} B of ledger index / {count} + {d.key_count} keys of "
            f"{f.key_entry_size_bytes} B and their slots + checksums"
        )
        return [
            CapacityFigure("size", "record_size_bytes", self.record, "B", record),
            CapacityFigure("size", "entry_size_bytes", self.entry, "B", entry),
            CapacityFigure(
                "size", "log_bytes_per_msg", self.log, "B", f"entry {self.entry} B / {count}"
            ),
            CapacityFigure("size", "derived_bytes_per_msg", self.derived, "B", derived),
        ]


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
    return GroupLimits(
        (
            _appends(demand, calibration),
            _leader_loop(demand, calibration),
            _disk(demand, sizes, calibration),
            _network(demand, sizes),
            _window(demand, sizes, calibration, formats),
        )
    )


def _appends(demand: Demand, calibration: Calibration) -> CapacityFigure:
    cost, count, body = calibration.batch_cost, demand.batch_count, demand.body_size_bytes
    return CapacityFigure(
        "rate",
        "limit_appends_msgs_per_s",
        cost.msgs_per_s(count, body),
        "msg/s",
        f"{count} messages / ({cost.formula(count, body)}): a group with its client, as measured",
    )


def _leader_loop(demand: Demand, calibration: Calibration) -> CapacityFigure:
    count, body = demand.batch_count, demand.body_size_bytes
    cost = calibration.leader_cost
    append_s = cost.seconds(count, count * body) / count
    read_s = demand.consumer_count * calibration.read_cpu_s
    return CapacityFigure(
        "rate",
        "limit_leader_core_msgs_per_s",
        1 / (append_s + read_s),
        "msg/s",
        f"1 core / ({append_s * 1e6:.4g} us an append + {demand.consumer_count} consumers x "
        f"{calibration.read_cpu_s * 1e6:.4g} us)",
    )


def _disk(demand: Demand, sizes: MessageSizes, calibration: Calibration) -> CapacityFigure:
    written = 2 * sizes.log + sizes.derived
    rate = calibration.disk_write_bytes_per_s
    return CapacityFigure(
        "rate",
        "limit_disk_msgs_per_s",
        rate / written,
        "msg/s",
        f"{amount(rate, 'B/s')} / (2 x {number(sizes.log)} B of log, for files are filled with "
        f"zeros ahead, + {number(sizes.derived)} B derived)",
    )


def _network(demand: Demand, sizes: MessageSizes) -> CapacityFigure:
    followers, rate = demand.copies - 1, demand.host.network_bytes_per_s
    sent = followers * sizes.log + demand.consumer_count * sizes.record
    received = float(sizes.record)
    busiest = max(sent, received) * FRAME_RATIO
    words = (
        f"({followers} followers x {number(sizes.log)} B + {demand.consumer_count} consumers x "
        f"{sizes.record} B)"
        if sent >= received
        else f"{sizes.record} B received"
    )
    return CapacityFigure(
        "rate",
        "limit_network_msgs_per_s",
        rate / busiest,
        "msg/s",
        f"{amount(rate, 'B/s')} / ({words} x {FRAME_RATIO:.4g} for frames)",
    )


def _window(
    demand: Demand, sizes: MessageSizes, calibration: Calibration, formats: FormatSizes
) -> CapacityFigure:
    wait_s = demand.round_trip_ms / 1e3 + calibration.sync_s
    return CapacityFigure(
        "rate",
        "limit_window_msgs_per_s",
        formats.window_size_bytes / wait_s / sizes.log,
        "msg/s",
        f"window of {amount(formats.window_size_bytes, 'B')} / (round trip "
        f"{number(demand.round_trip_ms)} ms + sync {number(calibration.sync_s * 1e3)} ms) / "
        f"{number(sizes.log)} B",
    )

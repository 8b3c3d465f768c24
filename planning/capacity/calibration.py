"""A calibration: what a machine was measured to do, or conservative figures without one.

Owns the values, their form in JSON and what is assumed without a measurement. `bench.calibration`
measures; the commands read and write the file.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Final

from planning.capacity.append_cost import BatchCost, CostPoint, fit

VERSION: Final = 1
"""Version of the JSON form."""
POINT_COUNT_MAX: Final = 100
VALUE_MAX: Final = 1e15
"""Limit of every value: sums and products of larger ones would leave the range of numbers."""


class CalibrationError(ValueError):
    """A calibration cannot be used; the text says what is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class AppendPoint:
    """Batches of one kind, as many as three nodes and a client on the machine could append."""

    batch_count: int
    """Messages of a batch."""
    body_size_bytes: int
    batches_per_s: float
    leader_cpu_s: float
    """Processor time of the leader for a batch."""
    nodes_cpu_s: float
    """Processor time of all nodes for a batch."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The figures of a machine. Rates are in bytes of log a second."""

    source: str
    """The origin of the figures, for the reader of a plan."""
    is_measured: bool
    appends: tuple[AppendPoint, ...]
    read_cpu_s: float
    """Processor time of a node for each message that a consumer reads."""
    sync_s: float
    """Time of one sync of a page."""
    disk_write_bytes_per_s: float
    disk_read_bytes_per_s: float
    catch_up_bytes_per_s: float
    """Log that a follower takes over from its leader."""
    rebuild_bytes_per_s: float
    """Log that a start walks, with all queues and indexes built again."""
    failover_s: float
    """From the death of a leader to the next ack, median."""
    failover_s_max: float
    node_memory_size_bytes: int
    """Resident memory of a node under load that is its own: without mapped files."""
    machine: Mapping[str, Any] = field(default_factory=dict)
    made_unix_ms: int = 0

    def __post_init__(self) -> None:
        if not 0 < len(self.appends) <= POINT_COUNT_MAX:
            raise CalibrationError(
                f"a calibration has {len(self.appends)} measured appends; use 1 to "
                f"{POINT_COUNT_MAX}: run qlog bench calibrate again"
            )
        values = {name: getattr(self, name) for name in _POSITIVE}
        for point in self.appends:
            values |= {f"appends.{name}": value for name, value in asdict(point).items()}
        for name, value in values.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 < value <= VALUE_MAX:
                raise CalibrationError(
                    f"{name} is {value!r:.100} in the calibration; a number above 0 and up to "
                    f"{VALUE_MAX:g} is needed: run qlog bench calibrate again"
                )

    @cached_property
    def batch_cost(self) -> BatchCost:
        """Time between two batches when as many are under way as suit the machine."""
        return self._fit(lambda point: 1 / point.batches_per_s)

    @cached_property
    def leader_cost(self) -> BatchCost:
        """Processor time of the leader."""
        return self._fit(lambda point: point.leader_cpu_s)

    @cached_property
    def nodes_cost(self) -> BatchCost:
        """Processor time of all nodes of a group of three."""
        return self._fit(lambda point: point.nodes_cpu_s)

    def _fit(self, seconds: Callable[[AppendPoint], float]) -> BatchCost:
        return fit(
            [
                CostPoint(p.batch_count, p.batch_count * p.body_size_bytes, seconds(p))
                for p in self.appends
            ]
        )

    def to_json(self) -> dict[str, Any]:
        """Return the values under stable keys."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        values["appends"] = [asdict(point) for point in self.appends]
        return {"version": VERSION, **values, "machine": dict(self.machine)}

    @classmethod
    def from_json(cls, record: object) -> "Calibration":
        """Read what `to_json` returned. Raises CalibrationError for anything else."""
        if not isinstance(record, dict) or record.get("version") != VERSION:
            raise CalibrationError(
                f"this is no calibration of version {VERSION}; write one with qlog bench calibrate"
            )
        values = {key: value for key, value in record.items() if key != "version"}
        if not isinstance(values.get("source"), str) or not isinstance(values.get("machine"), dict):
            raise CalibrationError("source is no text, or machine no object, in the calibration")
        try:
            values["appends"] = tuple(AppendPoint(**point) for point in values["appends"])
            return cls(**values)
        except (TypeError, KeyError) as error:
            raise CalibrationError(
                f"the calibration has other keys than this version writes ({error}); write one "
                "with qlog bench calibrate"
            ) from None


_POSITIVE: Final = (
    "read_cpu_s", "sync_s", "disk_write_bytes_per_s", "disk_read_bytes_per_s",
    "catch_up_bytes_per_s", "rebuild_bytes_per_s", "failover_s", "failover_s_max",
    "node_memory_size_bytes",
)  # fmt: skip

"""The promised times, and the later ones of a run (I15).

Owns the published figures (fault-matrix 11) and their application: each time is divided by the
factor of its trial, which is the machine's slowness, at least 1 and never more than 2; then the
median and the 99th percentile of a whole run and the largest of each fault are compared. No setting
changes a gate. Must not know the measurements.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from chaos.percentiles import Percentiles
from chaos.profile import ClusterMode

FACTOR_MAX: Final = 2.0
"""Largest factor. On a slower machine times prove nothing, and that is a failure."""
MEDIAN_COUNT_MIN: Final = 10
"""Fail-overs from which on a median is judged: a single election lasts 0.5 to 1 s by chance."""


@dataclass(frozen=True, slots=True)
class Gates:
    """Limits in seconds, on a machine at factor 1."""

    failover_p50_s: float
    failover_p99_s: float
    failover_max_s: float
    recovery_max_s: float


PUBLISHED: Final = Gates(1.0, 2.5, 5.0, 2.0)
MASTER_SLAVE: Final = Gates(3.0, 5.5, 6.0, 2.0)
"""No figures are published for these modes. The name server declares a master dead after 3 s of
silence, and when its own leader died with the master it elects one before."""


def gates_of(mode: ClusterMode) -> Gates:
    """Return the gates of a mode."""
    return PUBLISHED if mode is ClusterMode.RAFT else MASTER_SLAVE


def factor_of(slowness: float) -> float:
    """Return the factor by which a time may be longer here."""
    return min(FACTOR_MAX, max(1.0, slowness))


class Times(Protocol):
    """The judged times of a trial."""

    @property
    def failovers_ms(self) -> Sequence[float]: ...
    @property
    def patience_ms(self) -> float: ...
    @property
    def recoveries_ms(self) -> Sequence[float]: ...
    @property
    def slowness(self) -> float: ...


def late_in_trial(times: Times, gates: Gates) -> list[str]:
    """Return the times of a trial that exceed the largest allowed one."""
    factor = factor_of(times.slowness)
    late = []
    for ms in times.failovers_ms:
        bound_s = gates.failover_max_s * factor + times.patience_ms / 1000
        if ms > bound_s * 1000:
            what = "from the loss of a leader to a receipt"
            late.append(f"I15: {ms / 1000:.2f} s {what}, {_bound(bound_s, factor)}")
    for ms in times.recoveries_ms:
        bound_s = gates.recovery_max_s * factor
        if ms > bound_s * 1000:
            late.append(f"I15: whole after {ms / 1000:.2f} s, {_bound(bound_s, factor)}")
    return late


def late_in_run(trials: Iterable[Times], gates: Gates) -> list[str]:
    """Return the gates that the fail-overs of a run exceed together.

    Fail-overs of clusters that are set to wait longer before they elect are judged one by one only.
    """
    spans = Percentiles.of(
        [
            ms / 1000 / factor_of(times.slowness)
            for times in trials
            if not times.patience_ms
            for ms in times.failovers_ms
        ]
    )
    late: list[str] = []
    if spans is None:
        return late
    if spans.count >= MEDIAN_COUNT_MIN and spans.p50 > gates.failover_p50_s:
        what = f"the median of {spans.count} fail-overs"
        late.append(_late(what, spans.p50, gates.failover_p50_s))
    if spans.p99 > gates.failover_p99_s:
        late.append(_late(f"p99 of {spans.count} fail-overs", spans.p99, gates.failover_p99_s))
    return late


def shown(trials: Sequence[Times], gates: Gates) -> str:
    """Return the gates of a run and the factors that were applied, for people."""
    factors = sorted(factor_of(times.slowness) for times in trials) or [1.0]
    return (
        f"failover p50 {gates.failover_p50_s} s, p99 {gates.failover_p99_s} s, largest "
        f"{gates.failover_max_s} s, recovery {gates.recovery_max_s} s; times {factors[0]:.2f} to "
        f"{factors[-1]:.2f} for a slow machine"
    )


def _bound(bound_s: float, factor: float) -> str:
    return f"at most {bound_s:.2f} s on this machine (factor {factor:.2f})"


def _late(what: str, measured_s: float, bound_s: float) -> str:
    return (
        f"I15: {what} is {measured_s:.2f} s, at most {bound_s} s; divided by the machine's factors"
    )

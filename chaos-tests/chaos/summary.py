"""The figures of a run, and the table at its end.

Owns the counts and their names; must not know how a run is made.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from chaos.gates import FACTOR_MAX, gates_of, late_in_run
from chaos.gates import shown as shown_gates
from chaos.profile import ClusterMode
from chaos.trial import TrialResult

GROWN_COUNT_MIN: Final = 3


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of many values of one unit."""

    count: int
    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Percentiles | None":
        """Return the percentiles of `values`; None without values."""
        if not values:
            return None
        ordered = sorted(values)
        return cls(
            len(ordered),
            ordered[(len(ordered) - 1) // 2],
            ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
            ordered[-1],
        )

    def __str__(self) -> str:
        return self.shown("ms")

    def shown(self, unit: str) -> str:
        """Return the percentiles as text, for people."""
        return f"p50 {self.p50:,.0f} {unit}, p99 {self.p99:,.0f} {unit}, max {self.max:,.0f} {unit}"


@dataclass(frozen=True, slots=True)
class CampaignSummary:
    """One run."""

    seed: int
    mode: str
    transports: dict[str, int]
    """Count of scenarios by the transport of their clients."""
    toxiproxy_version: str
    took_s: float
    passed: int
    failed: tuple[str, ...]
    skipped: dict[str, str]
    faults: dict[str, int]
    outcomes: dict[str, int]
    errors: dict[str, int]
    acked: int
    lost: int
    lost_reported: int
    anomalies: int
    failovers: Percentiles | None
    recoveries: Percentiles | None
    restarts: Percentiles | None
    slowness: float
    """Slowness of the machine, at its worst."""
    gates: str
    late: tuple[str, ...]
    """Times of passed scenarios, and of the run as a whole, beyond the gates."""
    judges_times: bool
    """Whether these fail the run."""
    memory_mib: Percentiles | None
    """Memory of nodes at the ends of scenarios, without mapped files."""
    growth_mib: Percentiles | None
    """Growth of a node's process per scenario, from its first to its last."""

    @classmethod
    def of(
        cls,
        results: Sequence[TrialResult],
        *,
        seed: int,
        mode: str,
        version: str,
        took_s: float,
        judges_times: bool = False,
    ) -> "CampaignSummary":
        faults: Counter[str] = Counter()
        outcomes: Counter[str] = Counter()
        errors: Counter[str] = Counter()
        for result in results:
            faults.update(result.fault_counts)
            outcomes.update(result.outcomes)
            errors.update(result.errors)
        return cls(
            seed,
            mode,
            dict(Counter(result.transport for result in results).most_common()),
            version,
            took_s,
            sum(result.verdict == "passed" for result in results),
            tuple(result.scenario.name for result in results if result.verdict == "failed"),
            {r.scenario.name: r.why for r in results if r.verdict == "skipped"},
            dict(faults.most_common()),
            dict(sorted(outcomes.items())),
            dict(errors.most_common()),
            sum(result.acked_count for result in results),
            sum(result.lost_count for result in results),
            sum(result.lost_reported_count for result in results),
            sum(len(result.violations) for result in results),
            Percentiles.of([ms for result in results for ms in result.failovers_ms]),
            Percentiles.of([r.recovery_ms for r in results if r.recovery_ms is not None]),
            Percentiles.of([ms for result in results for ms in result.restarts_ms]),
            max((result.slowness for result in results), default=1.0),
            shown_gates(results, gates_of(ClusterMode(mode))),
            (
                *(f"{r.scenario.name}: {text}" for r in results for text in r.late),
                *late_in_run(results, gates_of(ClusterMode(mode))),
            ),
            judges_times,
            Percentiles.of([b / 2**20 for r in results for b in r.memory_size_bytes.values()]),
            Percentiles.of(growth_mib(results)),
        )

    @property
    def fault_count(self) -> int:
        """Number of faults that were injected."""
        return sum(self.faults.values())

    @property
    def operation_count(self) -> int:
        """Number of operations that were checked."""
        return sum(self.outcomes.values())

    def rows(self) -> list[tuple[str, str]]:
        """Return names and values, for people."""
        return [
            ("seed", str(self.seed)),
            ("mode", self.mode),
            ("transport of clients", _listed(self.transports) or "none"),
            ("toxiproxy", self.toxiproxy_version),
            ("took", f"{self.took_s:,.0f} s"),
            ("scenarios", f"{self.passed} passed, {len(self.failed)} failed, "
             f"{len(self.skipped)} skipped"),
            ("faults", f"{self.fault_count:,}: " + _listed(self.faults)),
            ("operations", f"{self.operation_count:,}: " + _listed(self.outcomes)),
            ("errors of clients", _listed(self.errors) or "none"),
            ("acked", f"{self.acked:,}"),
            ("acked and lost", f"{self.lost:,}"),
            ("lost, and reported", f"{self.lost_reported:,}"),
            ("anomalies", f"{self.anomalies:,}"),
            ("failover", str(self.failovers or "none")
             + (f" ({self.failovers.count})" if self.failovers else "")),
            ("recovery", str(self.recoveries or "none")),
            ("ready after a kill", str(self.restarts or "none")),
            ("machine", f"{self.slowness:.2f} times slower than a quiet one, at its worst"
             + (": measured under load" if self.slowness > FACTOR_MAX else "")),
            ("gates", self.gates),
            ("memory of a node", _mib(self.memory_mib)),
            ("its growth a scenario", _mib(self.growth_mib)),
        ]  # fmt: skip

    def table(self) -> str:
        """Return all rows as text."""
        width = max(len(name) for name, _ in self.rows())
        lines = [f"  {name:<{width}}  {value}" for name, value in self.rows()]
        lines += [f"  FAILED   {name}" for name in self.failed]
        lines += [f"  {'FAILED' if self.judges_times else 'late':<7}  {text}" for text in self.late]
        lines += [f"  skipped  {name}: {why}" for name, why in self.skipped.items()]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, for a program."""
        from dataclasses import asdict

        return asdict(self)


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _mib(percentiles: Percentiles | None) -> str:
    return "none" if percentiles is None else f"{percentiles.shown('MiB')} ({percentiles.count})"


def growth_mib(results: Sequence[TrialResult]) -> list[float]:
    """Return the average growth of each process from one scenario to the next, in MiB.

    Only of processes that lived through at least three: memory that is needed once is no leak.
    """
    sizes: dict[int, list[int]] = {}
    for result in results:
        for pid, size_bytes in result.memory_size_bytes.items():
            sizes.setdefault(pid, []).append(size_bytes)
    return [
        (found[-1] - found[0]) / (len(found) - 1) / 2**20
        for found in sizes.values()
        if len(found) >= GROWN_COUNT_MIN
    ]

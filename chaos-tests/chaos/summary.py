"""The figures of a run, and the table at its end.

Owns the counts and their names; must not know how a run is made.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from chaos.gates import FACTOR_MAX, gates_of, late_in_run
from chaos.gates import shown as shown_gates
from chaos.percentiles import Percentiles
from chaos.profile import ClusterMode
from chaos.trial import TrialResult

GROWN_COUNT_MIN: Final = 3


class CampaignSummary:
    """One run. Its attributes are the keys of its document."""

    def __init__(
        self,
        results: Sequence[TrialResult],
        *,
        seed: int,
        mode: str,
        version: str,
        took_s: float,
        judges_times: bool = False,
    ) -> None:
        """`version` is that of Toxiproxy. `judges_times`: late times fail the run."""
        faults, outcomes, errors = Counter[str](), Counter[str](), Counter[str]()
        for result in results:
            faults.update(result.fault_counts)
            outcomes.update(result.outcomes)
            errors.update(result.errors)
        gates = gates_of(ClusterMode(mode))
        self.seed, self.mode = seed, mode
        self.transports = dict(Counter(result.transport for result in results).most_common())
        """Count of scenarios by the transport of their clients."""
        self.toxiproxy_version, self.took_s = version, took_s
        self.passed = sum(result.verdict == "passed" for result in results)
        self.failed = [r.scenario.name for r in results if r.verdict == "failed"]
        self.skipped = {r.scenario.name: r.why for r in results if r.verdict == "skipped"}
        self.faults = dict(faults.most_common())
        self.outcomes, self.errors = dict(sorted(outcomes.items())), dict(errors.most_common())
        self.acked = sum(result.acked_count for result in results)
        self.lost = sum(result.lost_count for result in results)
        self.lost_reported = sum(result.lost_reported_count for result in results)
        self.anomalies = sum(len(result.violations) for result in results)
        self.failovers = Percentiles.of([ms for r in results for ms in r.failovers_ms])
        self.recoveries = Percentiles.of([ms for r in results for ms in r.recoveries_ms])
        self.restarts = Percentiles.of([ms for r in results for ms in r.restarts_ms])
        self.slowness = max((result.slowness for result in results), default=1.0)
        """Slowness of the machine, at its worst."""
        self.gates = shown_gates(results, gates)
        self.late = [f"{r.scenario.name}: {text}" for r in results for text in r.late]
        """Times of passed scenarios, and of the run as a whole, beyond the gates."""
        self.late += late_in_run(results, gates)
        self.judges_times = judges_times
        sizes_mib = [size / 2**20 for r in results for size in r.memory_size_bytes.values()]
        self.memory_mib = Percentiles.of(sizes_mib)
        """Memory of nodes at the ends of scenarios, without mapped files."""
        self.growth_mib = Percentiles.of(growth_mib(results))
        """Growth of a node's process per scenario, from its first to its last."""

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
        return {
            name: asdict(value) if isinstance(value, Percentiles) else value
            for name, value in vars(self).items()
        }


def _listed(counts: Mapping[Any, int]) -> str:
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

"""The results of a run on hosts, as a table and for programs.

Owns the columns. What the machine could not do has a row that says why: it is neither passed nor
left out.
"""

from collections.abc import Sequence
from typing import Any, Final

from hosts.suite import HostRun

NOT_POSSIBLE: Final = "not possible here"
_COLUMNS: Final = (
    ("scenario", 22), ("seed", 11), ("over", 7), ("verdict", 8), ("s", 5), ("operations", 11),
    ("acked", 8), ("lost", 5), ("fail-over ms", 14), ("recovery ms", 12), ("slowness", 8),
)  # fmt: skip


_SAME: Final = (
    "seed", "transport", "why", "took_s", "operation_count", "acked_count", "lost_count",
    "failovers_ms", "recovery_ms", "slowness", "proofs",
)  # fmt: skip
"""Keys that have the names of the result's attributes."""


def verdict_of(run: HostRun) -> str:
    """Return `passed`, `failed` or `not possible here`."""
    return NOT_POSSIBLE if run.result.verdict == "skipped" else run.result.verdict


def results_table(runs: Sequence[HostRun]) -> str:
    """Return one row for each scenario, and below it what it has measured."""
    lines = [_row([name for name, _ in _COLUMNS])]
    for run in runs:
        result = run.result
        if verdict_of(run) == NOT_POSSIBLE:
            lines.append(f"{run.scenario.name:<22} {NOT_POSSIBLE}: {result.why}")
            continue
        recovery = "-" if result.recovery_ms is None else f"{result.recovery_ms:,.0f}"
        failovers = " ".join(f"{ms:,.0f}" for ms in result.failovers_ms) or "-"
        texts = (
            run.scenario.name, str(result.seed), result.transport, result.verdict,
            f"{result.took_s:.0f}", f"{result.operation_count:,}", f"{result.acked_count:,}",
            str(result.lost_count), failovers, recovery, f"{result.slowness:.1f}",
        )  # fmt: skip
        lines.append(_row(texts))
        lines += [f"    {name}: {value:,.0f}" for name, value in run.figures.items()]
    return "\n".join(lines)


def results_json(runs: Sequence[HostRun]) -> list[dict[str, Any]]:
    """Return the same as plain values: `verdict` is `passed`, `failed` or `not possible here`."""
    return [
        {
            "scenario": run.scenario.name,
            "verdict": verdict_of(run),
            "faults": run.result.fault_counts,
            "anomaly_count": len(run.result.violations),
            "figures": dict(run.figures),
            **{name: getattr(run.result, name) for name in _SAME},
        }
        for run in runs
    ]


def _row(texts: Sequence[str]) -> str:
    return " ".join(
        f"{text:<{width}}" for text, (_, width) in zip(texts, _COLUMNS, strict=True)
    ).rstrip()

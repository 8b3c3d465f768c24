"""Shrinking a failing case: fewer faults, fewer clients, fewer nodes, less time.

Owns delta debugging of a case. A smaller case counts only if it breaks the same invariant. The plan
goes first, in halves, then quarters, at last fault by fault; then options are lowered one by one;
then the plan once more, since a smaller run often needs fewer faults.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace

from simulation.raft.options import SimulatorOptions
from simulation.raft.plan import Fault
from simulation.raft.runner import Case, run_case

_RUN_COUNT_MAX = 2000
"""Runs spent on one case: a few minutes."""


class Shrinker:
    """Shrinks one case; `tell` gets one line per success."""

    def __init__(self, case: Case, tell: Callable[[str], None]) -> None:
        report = run_case(case)
        if report.passed:
            raise ValueError(f"seed {case.options.seed} passes: there is nothing to shrink")
        self.code = report.code
        self.case = case
        self.run_count = 0
        self._tell = tell

    def _try(self, case: Case, what: str) -> bool:
        if self.run_count >= _RUN_COUNT_MAX:
            return False
        self.run_count += 1
        if run_case(case).code != self.code:
            return False
        self.case = case
        self._tell(f"{what}: {len(case.plan)} faults, still {self.code}")
        return True

    def shrink(self) -> Case:
        """Return the smallest case found."""
        self._shrink_plan()
        self._shrink_events()
        self._shrink_options()
        self._shrink_plan()
        self._shrink_events()
        return self.case

    def _shrink_plan(self) -> None:
        size = max(1, len(self.case.plan) // 2)
        while self.case.plan:
            at, found = 0, False
            while at < len(self.case.plan):
                plan = self.case.plan
                shorter = replace(self.case, plan=plan[:at] + plan[at + size :])
                if self._try(shorter, f"without faults {at} to {at + size - 1}"):
                    found = True
                else:
                    at += size
            if size == 1 and not found:
                return
            size = max(1, size // 2)

    def _shrink_events(self) -> None:
        """Stop the safety phase where the invariant broke."""
        count = run_case(self.case).event_count
        options = self.case.options
        if count < options.event_count_max:
            self._try(
                replace(self.case, options=replace(options, event_count_max=count)),
                f"{count} events",
            )

    def _shrink_options(self) -> None:
        simpler: list[dict[str, object]] = [
            {"client_count": count} for count in range(self.case.options.client_count)
        ]
        simpler += [{"voter_count": count} for count in (1, 2, 3)]
        simpler += [
            {"loss": 0.0},
            {"duplication": 0.0},
            {"corruption": 0.0},
            {"delay_shape": "constant"},
            {"batch_turns": False},
            {"snapshot_every": 0},
            {"page_cache": False},
            {"is_stream": False},
            {"apply_us": 0},
            {"link_capacity": 64},
            {"apply_entry_count_max": 4096},
            {"window_entry_count_max": 4096},
            {"message_entry_count_max": 4096},
            {"duration_us": self.case.options.duration_us // 2},
            {"duration_us": self.case.options.duration_us // 4},
        ]
        for change in simpler:
            options = self.case.options
            if any(getattr(options, name) > value for name, value in change.items()) or any(
                isinstance(value, str | bool) and getattr(options, name) != value
                for name, value in change.items()
            ):
                smaller = replace(options, **change)  # type: ignore[arg-type]
                self._try(replace(self.case, options=smaller), str(change))


def to_json(case: Case) -> str:
    """Return a case as text, for a later replay."""
    return json.dumps({"options": asdict(case.options), "plan": case.plan}, indent=1)


def from_json(text: str) -> Case:
    """Return the case from a text made by `to_json`."""
    found = json.loads(text)
    options = found["options"]
    options["fault_kinds"] = tuple(options["fault_kinds"])
    return Case(SimulatorOptions(**options), tuple(Fault(*fault) for fault in found["plan"]))

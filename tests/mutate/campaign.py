"""Judges faults: which tests are tried against each, in which order, and what is concluded.

Owns the order of the search; must not know processes or what is printed. First the
tests that run its line that are near and quick, up to a budget, then more of them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from tests.mutate.faults import Fault
from tests.mutate.hunting import Outcome, Task
from tests.mutate.recording import Run, TestMap
from tests.mutate.targets import Project

STAGES: Final = (("near", 3.0), ("wide", 12.0), ("far", 90.0))
"""How long the tests of a stage may take by the map, for one fault."""
BATCH_COUNT: Final = 40
"""Faults that go through the stages together: what survives is told after each batch."""
LONG_TEST_S: Final = 6.0
"""What a test may take to be chosen at all."""
_UNKNOWN_S: Final = 1.0


class Killers(Protocol):
    """Runs tests against faults."""

    def knows(self, node_id: str) -> bool: ...
    def outcomes(self, tasks: Iterator[Task]) -> Iterator[Outcome]: ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known about one fault."""

    fault: Fault
    killer: str | None = None
    how: str = "survived"
    """failed, timeout, ended: killed so. survived, not run, not plantable, not loaded. Where one
    test was asked also not judged: it is not there, or does not pass without the fault."""
    stage: str = ""
    """near, wide, far or long: the stage of the search that found the killer. asked: the one
    test."""
    tests: tuple[str, ...] = ()
    """Those that were asked, the best ones first; of a killed one none."""
    seconds: float = 0.0

    @property
    def is_killed(self) -> bool:
        return self.killer is not None

    @property
    def is_alive(self) -> bool:
        """Whether nothing noticed it."""
        return self.how in ("survived", "not run", "not loaded", "not judged")


@dataclass(slots=True)
class Search:
    """How far the search for the killer of one fault has come."""

    fault: Fault
    runs: list[Run]
    """The tests of its line, the best ones first."""
    asked_count: int = 0

    def next_tests(self, budget_s: float) -> list[Run]:
        """Take as many of the next tests as the budget allows, one at least."""
        chosen = _within(self.runs[self.asked_count :], budget_s)
        self.asked_count += len(chosen)
        return chosen


@dataclass(slots=True)
class Campaign:
    """The judgement of many faults, in the session of a hunter."""

    project: Project
    hunter: Killers
    on_verdict: Callable[[Verdict], None]
    _sound: dict[str, bool] = field(default_factory=dict)
    """Whether a test passes alone when nothing is planted."""
    _texts: dict[str, str] = field(default_factory=dict)
    """Of files of tests."""

    def asked(self, faults: Iterable[Fault], node_id: str) -> None:
        """Ask one test about each fault."""
        run = Run(node_id, _UNKNOWN_S, _UNKNOWN_S)
        if not self.hunter.knows(node_id) or not self._passes(run):
            for fault in faults:
                self.on_verdict(Verdict(fault, how="not judged", tests=(node_id,)))
            return
        self._search({fault.name: Search(fault, [run]) for fault in faults}, (("asked", 0.0),))

    def searched(
        self, faults: Sequence[Fault], tests: TestMap, stages: Sequence[tuple[str, float]] = STAGES
    ) -> None:
        """Search a killer for each fault among the tests that run its line."""
        for lo in range(0, len(faults), BATCH_COUNT):
            batch = faults[lo : lo + BATCH_COUNT]
            self._search({f.name: Search(f, self._ranked(f, tests)) for f in batch}, stages)

    def _search(self, searches: dict[str, Search], stages: Sequence[tuple[str, float]]) -> None:
        for stage, budget_s in stages:
            tasks = []
            for search in searches.values():
                chosen = search.next_tests(budget_s)
                if chosen:
                    tasks.append(Task(search.fault, tuple(_by_file(chosen))))
            self._stage(stage, tasks, searches)
        for search in searches.values():
            tests = tuple(run.node_id for run in search.runs[: search.asked_count])
            how = "survived" if tests else "not run"
            self.on_verdict(Verdict(search.fault, how=how, tests=tests))

    def _stage(self, stage: str, tasks: list[Task], searches: dict[str, Search]) -> None:
        """Run tasks; take the faults that are judged out of the searches."""
        while tasks:
            again = []
            for outcome in self.hunter.outcomes(iter(tasks)):
                fault = outcome.task.fault
                assert fault is not None, "a task without a fault"
                if outcome.how in ("not plantable", "not loaded"):
                    self.on_verdict(Verdict(fault, how=outcome.how))
                    del searches[fault.name]
                elif outcome.killer is None:
                    continue
                elif self._is_sound(outcome) and self._is_sure(outcome):
                    del searches[fault.name]
                    self._conclude(outcome, stage)
                else:
                    # This test says nothing about the fault; the others may.
                    rest = [r for r in outcome.task.tests if r.node_id != outcome.killer]
                    if rest:
                        again.append(replace(outcome.task, tests=tuple(rest)))
            tasks = again

    def _conclude(self, outcome: Outcome, stage: str) -> None:
        fault = outcome.task.fault
        assert fault is not None, "a task without a fault"
        seconds = outcome.seconds
        self.on_verdict(Verdict(fault, outcome.killer, outcome.how, stage, seconds=seconds))

    def _is_sound(self, outcome: Outcome) -> bool:
        """Say whether the killer passes when nothing is planted, within the same time.

        Behind a time-out it is asked anew: the machine may have become slow since."""
        killer = _killer_of(outcome)
        if killer.node_id not in self._sound or outcome.how == "timeout":
            self._sound[killer.node_id] = self._passes(killer)
        return self._sound[killer.node_id]

    def _passes(self, run: Run) -> bool:
        """Say whether a test passes alone when nothing is planted."""
        answers = self.hunter.outcomes(iter([Task(None, (run,))]))
        return all(answer.killer is None for answer in answers)

    def _is_sure(self, outcome: Outcome) -> bool:
        """Say whether the killer alone kills the fault again."""
        if outcome.how == "timeout" or len(outcome.task.tests) == 1:
            return True
        task = replace(outcome.task, tests=(_killer_of(outcome),))
        return all(answer.killer is not None for answer in self.hunter.outcomes(iter([task])))

    def _ranked(self, fault: Fault, tests: TestMap) -> list[Run]:
        """Order the tests of a line: quick ones first, and those of near files before others."""
        runs = [
            run
            for run in tests.tests_of(fault.path, fault.line)
            if run.seconds <= LONG_TEST_S and self.hunter.knows(run.node_id)
        ]
        near = {file for file in {run.file for run in runs} if self._names(file, fault.path)}
        return sorted(runs, key=lambda run: run.seconds * (1 if run.file in near else 4))

    def _names(self, file: str, path: str) -> bool:
        if file not in self._texts:
            self._texts[file] = self.project.source_of(file)
        return imports(self._texts[file], path)


def imports(text: str, path: str) -> bool:
    """Say whether a text imports the module of a file."""
    module = path.removesuffix(".py").replace("/", ".")
    package, _, name = module.rpartition(".")
    said = (f"from {module} import", f"from {package} import {name}", f"import {module}\n")
    return any(line in text for line in said)


def _killer_of(outcome: Outcome) -> Run:
    return next(run for run in outcome.task.tests if run.node_id == outcome.killer)


def _within(runs: list[Run], budget_s: float) -> list[Run]:
    chosen: list[Run] = []
    sum_s = 0.0
    for run in runs:
        sum_s += run.seconds + 0.01
        if sum_s > budget_s and chosen:
            break
        chosen.append(run)
    return chosen


def _by_file(runs: list[Run]) -> list[Run]:
    """Keep the tests of a file together, for the sake of its fixtures; the best file is first."""
    files: dict[str, list[Run]] = {}
    for run in runs:
        files.setdefault(run.file, []).append(run)
    return [run for of_file in files.values() for run in of_file]

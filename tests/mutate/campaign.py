"""Judges faults: which tests are tried against each, in which order, and what is concluded.

Owns the order of the search; must not know processes or what is printed. First the test that killed
the fault the last time, then the tests that run its line: near and quick ones up to a budget, then
more of them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from tests.mutate.faults import Fault
from tests.mutate.hunting import Outcome, Task
from tests.mutate.recording import Run, TestMap
from tests.mutate.targets import Project

STAGES: Final = (("near", 3.0), ("wide", 12.0))
"""How long the tests of a stage may take by the map, for one fault."""
BATCH_COUNT: Final = 40
"""Faults that go through the stages together: what survives is told after each batch."""
LONG_TEST_S: Final = 6.0
"""What a test may take to be chosen at all."""
_UNKNOWN_S: Final = 1.0


class Killers(Protocol):
    """Runs tests against faults."""

    def knows(self, node_id: str) -> bool: ...
    def is_slow(self, node_id: str) -> bool: ...
    def outcomes(self, tasks: Iterator[Task]) -> Iterator[Outcome]: ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known about one fault."""

    fault: Fault
    killer: str | None = None
    how: str = "survived"
    """failed, timeout, ended: killed so. survived, not run, not plantable. Where only the recorded
    test was asked also test gone, not planted (as it was before), and not judged: the test does not
    pass alone without the fault."""
    stage: str = ""
    """recorded, known, near or wide: where the killer was found; slow: by a test marked slow."""
    tests: tuple[str, ...] = ()
    """Those that were asked, the best ones first; of a killed one none."""
    seconds: float = 0.0

    @property
    def is_killed(self) -> bool:
        return self.killer is not None

    @property
    def is_alive(self) -> bool:
        """Whether nothing noticed it: nothing runs it, or it did not come into the code."""
        return self.how in ("survived", "not run", "test gone", "not planted")

    @property
    def is_unjudged(self) -> bool:
        """Whether the test that was asked says nothing, because it fails or takes too long here
        without the fault, too. The run of all tests judges that test."""
        return self.how == "not judged"


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

    def recorded(self, faults: Iterable[Fault], killers: Mapping[str, str]) -> list[Fault]:
        """Ask for each fault the test that killed it before; return those that it did not."""
        left, tasks = [], []
        for fault in faults:
            killer = killers.get(fault.name)
            if killer is not None and self.hunter.knows(killer):
                tasks.append(Task(fault, (Run(killer, _UNKNOWN_S, _UNKNOWN_S),)))
            else:
                left.append(fault)
        for outcome in self.hunter.outcomes(iter(tasks)):
            assert outcome.task.fault is not None, "a task without a fault"
            if outcome.killer is not None and self._is_sound(outcome):
                self._conclude(outcome, "recorded")
            else:
                left.append(outcome.task.fault)
        return left

    def asked(self, faults: Iterable[Fault], killers: Mapping[str, str]) -> None:
        """Ask for each fault only the test that killed it before, and conclude from that alone."""
        tasks = []
        for fault in faults:
            killer = killers[fault.name]
            if self.hunter.knows(killer):
                tasks.append(Task(fault, (Run(killer, _UNKNOWN_S, _UNKNOWN_S),)))
            else:
                self.on_verdict(Verdict(fault, how="test gone", tests=(killer,)))
        for outcome in self.hunter.outcomes(iter(tasks)):
            task = outcome.task
            assert task.fault is not None, "a task without a fault"
            tests = tuple(run.node_id for run in task.tests)
            if outcome.killer is None:
                # It was planted when it was recorded: else whatever is broken here passes for ever.
                how = "survived" if outcome.how == "passed" else "not planted"
                self.on_verdict(Verdict(task.fault, how=how, tests=tests))
            elif self._is_sound(outcome):
                self._conclude(outcome, "recorded")
            else:
                self.on_verdict(Verdict(task.fault, how="not judged", tests=tests))

    def known(self, faults: Iterable[Fault], tests: Mapping[str, Sequence[str]]) -> None:
        """Ask for each fault these tests, and conclude from them alone."""
        searches = {}
        for fault in faults:
            asked = [test for test in tests[fault.name] if self.hunter.knows(test)]
            runs = [Run(test, _UNKNOWN_S, _UNKNOWN_S) for test in asked]
            searches[fault.name] = Search(fault, runs, len(runs))
        tasks = [Task(s.fault, tuple(_by_file(s.runs))) for s in searches.values() if s.runs]
        self._stage("known", tasks, searches)
        self._give_up(searches)

    def searched(
        self, faults: Sequence[Fault], tests: TestMap, stages: Sequence[tuple[str, float]] = STAGES
    ) -> None:
        """Search a killer for each fault among the tests that run its line."""
        for lo in range(0, len(faults), BATCH_COUNT):
            self._search_batch(faults[lo : lo + BATCH_COUNT], tests, stages)

    def _search_batch(
        self, faults: Sequence[Fault], tests: TestMap, stages: Sequence[tuple[str, float]]
    ) -> None:
        searches = {fault.name: Search(fault, self._ranked(fault, tests)) for fault in faults}
        for stage, budget_s in stages:
            tasks = []
            for search in searches.values():
                chosen = search.next_tests(budget_s)
                if chosen:
                    tasks.append(Task(search.fault, tuple(_by_file(chosen))))
            self._stage(stage, tasks, searches)
        self._give_up(searches)

    def _give_up(self, searches: Mapping[str, Search]) -> None:
        """Conclude what is left behind all tests."""
        for search in searches.values():
            asked = tuple(run.node_id for run in search.runs[: search.asked_count])
            how = "survived" if asked else "not run"
            self.on_verdict(Verdict(search.fault, how=how, tests=asked))

    def _stage(self, stage: str, tasks: list[Task], searches: dict[str, "Search"]) -> None:
        """Run tasks; take the faults that are judged out of the searches."""
        while tasks:
            again = []
            for outcome in self.hunter.outcomes(iter(tasks)):
                fault = outcome.task.fault
                assert fault is not None, "a task without a fault"
                if outcome.how == "not plantable":
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
        assert outcome.killer is not None, "nothing killed it"
        stage = "slow" if self.hunter.is_slow(outcome.killer) else stage
        seconds = outcome.seconds
        self.on_verdict(Verdict(fault, outcome.killer, outcome.how, stage, seconds=seconds))

    def _is_sound(self, outcome: Outcome) -> bool:
        """Whether the killer passes when nothing is planted, within the same time.

        Behind a time-out it is asked anew: the machine may have become slow since."""
        killer = _killer_of(outcome)
        if killer.node_id not in self._sound or outcome.how == "timeout":
            answers = self.hunter.outcomes(iter([Task(None, (killer,))]))
            self._sound[killer.node_id] = all(answer.killer is None for answer in answers)
        return self._sound[killer.node_id]

    def _is_sure(self, outcome: Outcome) -> bool:
        """Whether the killer alone kills the fault again."""
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
    """Whether a text imports the module of a file."""
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

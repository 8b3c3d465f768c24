"""A whole run: the tests that are known to kill first, then the search, then slow tests.

Owns the sequence of sessions; must not know arguments nor what is printed.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.mutate import recording, sessions
from tests.mutate.campaign import STAGES, Campaign, Verdict, imports
from tests.mutate.faults import Fault
from tests.mutate.targets import Project

_SLOW_STAGES: Final = (("slow", 60.0),)


@dataclass(frozen=True, slots=True)
class Judging:
    """How to judge faults of a project."""

    project: Project
    jobs: int
    say: Callable[[str], None]

    def with_known_killers(
        self, faults: Sequence[Fault], killers: Mapping[str, str]
    ) -> Iterator[Verdict]:
        """Yield a verdict for each fault that the named test kills again. Needs no map."""
        files = {killers[f.name].partition("::")[0] for f in faults if f.name in killers}
        present = sorted(file for file in files if (self.project.root / file).exists())
        if not present:
            return

        def judge(campaign: Campaign) -> None:
            campaign.recorded(faults, killers)

        # A killer may be marked slow: it is asked alone.
        yield from sessions.verdicts(self.project, judge, self.jobs, present, with_slow=True)

    def with_killers_alone(
        self, faults: Sequence[Fault], killers: Mapping[str, str]
    ) -> Iterator[Verdict]:
        """Yield a verdict for each fault from the named test alone, without a search or a map."""
        files = {killers[fault.name].partition("::")[0] for fault in faults}
        present = sorted(file for file in files if (self.project.root / file).exists())
        if not present:
            for fault in faults:
                yield Verdict(fault, how="test gone", tests=(killers[fault.name],))
            return

        def judge(campaign: Campaign) -> None:
            campaign.asked(faults, killers)

        yield from sessions.verdicts(self.project, judge, self.jobs, present, with_slow=True)

    def with_known_tests(
        self, faults: Sequence[Fault], tests: Mapping[str, Sequence[str]]
    ) -> Iterator[Verdict]:
        """Yield a verdict for each fault from the named tests alone. Needs no map."""
        files = {test.partition("::")[0] for fault in faults for test in tests[fault.name]}
        present = sorted(file for file in files if (self.project.root / file).exists())
        if not present:
            yield from (Verdict(fault, how="not run") for fault in faults)
            return

        def judge(campaign: Campaign) -> None:
            campaign.known(faults, tests)

        # With slow ones, so that what a test is now decides, and not what it was.
        yield from sessions.verdicts(self.project, judge, self.jobs, present, with_slow=True)

    def with_near_search(self, faults: Sequence[Fault]) -> Iterator[Verdict]:
        """Yield a verdict for each fault, after a search in the files of tests that import its
        module. Needs a map of these only."""
        files = self._importing({fault.path for fault in faults})
        if not files:
            yield from (Verdict(fault, how="not run") for fault in faults)
            return
        yield from self._searched(faults, files, STAGES, with_slow=False)

    def with_search(self, faults: Sequence[Fault], *, with_slow: bool) -> Iterator[Verdict]:
        """Yield a verdict for each fault, after a search among the tests that run its line.

        Slow ones only of the files that name the modules: the others have many and take long."""
        if not faults:
            return
        files: list[str] = []
        if with_slow:
            paths = {fault.path for fault in faults}
            shared = recording.shared_files(self.project)
            files = self._importing({*paths, *(f for f in shared if self._names(f, paths))})
        stages = _SLOW_STAGES if with_slow else STAGES
        yield from self._searched(faults, files, stages, with_slow=with_slow)

    def _searched(
        self,
        faults: Sequence[Fault],
        files: Sequence[str],
        stages: Sequence[tuple[str, float]],
        *,
        with_slow: bool,
    ) -> Iterator[Verdict]:
        tests = sessions.map_of_tests(self.project, self.jobs, self.say, files, with_slow=with_slow)

        def judge(campaign: Campaign) -> None:
            campaign.searched(faults, tests, stages)

        yield from sessions.verdicts(self.project, judge, self.jobs, files, with_slow=with_slow)

    def _importing(self, paths: Collection[str]) -> list[str]:
        """Return the files of tests that import one of these modules."""
        return [file for file in recording.file_keys(self.project) if self._names(file, paths)]

    def _names(self, file: str, paths: Collection[str]) -> bool:
        text = self.project.source_of(file)
        return any(imports(text, path) for path in paths)

"""A whole run: the search, then tests marked long.

Owns the sequence of sessions; must not know arguments nor what is printed.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tests.mutate import recording, sessions
from tests.mutate.campaign import STAGES, Campaign, Verdict, imports
from tests.mutate.faults import Fault
from tests.mutate.targets import Project

_LONG_STAGES: Final = (("long", 60.0),)


@dataclass(frozen=True, slots=True)
class Judging:
    """How to judge faults of a project."""

    project: Project
    jobs: int
    say: Callable[[str], None]

    def with_test(self, faults: Sequence[Fault], node_id: str) -> Iterator[Verdict]:
        """Yield a verdict for each fault from one test, without a search or a map."""
        file = node_id.partition("::")[0]
        if not (self.project.root / file).exists():
            for fault in faults:
                yield Verdict(fault, how="not judged", tests=(node_id,))
            return

        def judge(campaign: Campaign) -> None:
            campaign.asked(faults, node_id)

        yield from sessions.verdicts(self.project, judge, self.jobs, [file], with_long=True)

    def with_search(self, faults: Sequence[Fault], *, with_long: bool) -> Iterator[Verdict]:
        """Yield a verdict for each fault, after a search among the tests that run its line.

        Tests marked long only of the files that name the modules: the others have many."""
        if not faults:
            return
        files = self._naming({fault.path for fault in faults}) if with_long else []
        tests = sessions.map_of_tests(self.project, self.jobs, self.say, files, with_long=with_long)

        def judge(campaign: Campaign) -> None:
            campaign.searched(faults, tests, _LONG_STAGES if with_long else STAGES)

        yield from sessions.verdicts(self.project, judge, self.jobs, files, with_long=with_long)

    def _naming(self, paths: Collection[str]) -> list[str]:
        """Return the files of tests that import one of these modules, or what tests share and
        imports it."""
        shared = recording.shared_files(self.project)
        named = [*paths, *(file for file in shared if self._names(file, paths))]
        return [file for file in recording.file_keys(self.project) if self._names(file, named)]

    def _names(self, file: str, paths: Collection[str]) -> bool:
        text = self.project.source_of(file)
        return any(imports(text, path) for path in paths)

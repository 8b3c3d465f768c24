"""The loop of a campaign: chooses a source, runs its next unit, counts it, and repeats.

Owns the choice and the end. Must not know what a unit does, nor how progress is shown. Each source
gets time by its weight: the next unit is of the one that has had the least for its weight. A unit
that is interrupted is not counted and runs again.
"""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from campaign.sources import WorkSource
from campaign.state import CampaignFinding, CampaignState
from campaign.unit import ROOT, RunningUnit, UnitResult, WorkUnit

OWN_FILES: Final = ("docs/campaigns.md", "campaign/recorded.json", "campaign/findings.md")
"""Files that say what campaigns did: their change makes no other commit of what is attacked."""

LAG_S_MAX: Final = 3_600.0
"""Time, for a weight of 1, that a source may be behind the others when a run begins: otherwise one
that is new, or was left out for days, would have the machine alone."""


class Show(Protocol):
    """Shows the progress of a campaign."""

    def begin(self, unit: WorkUnit) -> None:
        """Show a unit that begins."""

    def end(self, result: UnitResult, finding: CampaignFinding | None) -> None:
        """Show a unit that has ended, and what it found."""


class CampaignRun:
    """One run of a campaign: until its time is up, or it is interrupted."""

    def __init__(
        self,
        sources: Sequence[WorkSource],
        state: CampaignState,
        path: Path,
        commit: Callable[[], str],
        show: Show,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`path` is the file of the state, saved after each unit. `commit` names the source that a
        unit is about to run: it may change while a campaign runs for hours."""
        assert sources, "a campaign without work"
        self._sources: Final = tuple(sources)
        self._state, self._path, self._commit, self._show = state, path, commit, show
        self._monotonic_s = monotonic_s
        least_s = max(map(self._share_s, self._sources)) - LAG_S_MAX
        for one in self._sources:
            state.spent_s[one.name] = max(self._share_s(one), least_s) * one.weight
        self.findings: Final[list[CampaignFinding]] = []
        self.unit_count = 0
        self.commits: Final[dict[str, None]] = {}
        """Commits of the units that ran, in their order."""
        self.is_interrupted = False

    def run(self, seconds: float) -> None:
        """Run units for so long; the last one ends later. Stops at once at KeyboardInterrupt."""
        end_s = self._monotonic_s() + seconds
        try:
            while self._monotonic_s() < end_s:
                self._run_one(self._next())
        except KeyboardInterrupt:
            self.is_interrupted = True

    def _share_s(self, source: WorkSource) -> float:
        return self._state.spent_s.get(source.name, 0.0) / source.weight

    def _next(self) -> WorkSource:
        return min(self._sources, key=self._share_s)

    def _run_one(self, source: WorkSource) -> None:
        unit = source.unit(self._state.next_numbers.get(source.name, 0))
        self._show.begin(unit)
        commit = self._commit()
        with RunningUnit(unit) as running:
            result = running.wait()
        result = replace(result, counts=source.counts(result.output))
        finding = self._state.take(result, commit)
        self._state.save(self._path)
        self.unit_count += 1
        self.commits[commit] = None
        if finding is not None:
            self.findings.append(finding)
        self._show.end(result, finding)


def commit_of(root: Path = ROOT) -> str:
    """Return the commit of this source, with `+` if files of it are changed."""
    described = _git(root, "describe", "--always", "--exclude=*")
    kept = [f":(exclude){path}" for path in OWN_FILES]
    changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", *kept)
    return f"{described or 'unknown'}{'+' if changed else ''}"


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def chosen_sources(
    sources: Mapping[str, WorkSource], only: str | None, tell: Callable[[str], None]
) -> list[WorkSource]:
    """Return the sources named in `only`, or all sources that can run here.

    Raises ValueError for an unknown name, or for a named source that cannot run.
    """
    names = [name.strip() for name in only.split(",")] if only else list(sources)
    unknown = [name for name in names if name not in sources]
    if unknown:
        raise ValueError(f"no source {', '.join(unknown)}; there are {', '.join(sources)}")
    found = []
    for name in names:
        reason = sources[name].missing()
        if reason and only:
            raise ValueError(f"{name} cannot run: {reason}")
        if reason:
            tell(f"campaign: without {name}: {reason}")
        else:
            found.append(sources[name])
    return found

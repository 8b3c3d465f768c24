"""Where a campaign stopped: the next number of each source, and totals by commit.

Owns the file, which is outside of git. Numbers grow over all commits, so that a unit that has
ended does not run again; totals are kept for each commit, since they are evidence about that one.
The file is replaced as a whole after each unit.
"""

import fcntl
import json
import os
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from campaign.unit import ROOT, UnitResult, UnitVerdict

DEFAULT: Final = ROOT / "var" / "campaign" / "state.json"
_VERSION: Final = 1
_LAST_LINES: Final = 40
FINDING_SIZE_BYTES_MAX: Final = 8 * 1024
"""Bytes of output that a finding keeps; a line may be as long as it likes."""
FINDING_COUNT_MAX: Final = 1_000
"""Findings of which the state keeps the end of the output; further ones are counted."""

Totals = dict[str, dict[str, Counter[str]]]
"""By commit and source."""


class StateDamagedError(Exception):
    """A state file that cannot be read. Remove it, or name another one with --state."""


class StateTakenError(Exception):
    """Another campaign counts in the state file."""

    def __str__(self) -> str:
        return f"a campaign runs with {self.args[0]}; end it, or name another file with --state"


@dataclass(frozen=True, slots=True)
class CampaignFinding:
    """A unit that failed, or that the campaign ended."""

    commit: str
    source: str
    verdict: str
    exit_code: int
    command_line: str
    output: str
    """Its last lines, at most FINDING_SIZE_BYTES_MAX."""


@dataclass(slots=True)
class CampaignState:
    """The state of one campaign directory."""

    run_id: str
    """Tells the totals of this file from those of other machines in the ledger."""
    next_numbers: dict[str, int] = field(default_factory=dict)
    spent_s: dict[str, float] = field(default_factory=dict)
    """Time spent on each source: the next unit is of the one that is behind its share."""
    totals: Totals = field(default_factory=dict)
    findings: list[CampaignFinding] = field(default_factory=list)

    def take(self, result: UnitResult, commit: str) -> CampaignFinding | None:
        """Count a unit that has ended, and return what it found."""
        unit = result.unit
        self.next_numbers[unit.source] = 1 + self.next_numbers.get(unit.source, 0)
        self.spent_s[unit.source] = self.spent_s.get(unit.source, 0.0) + result.took_s
        counts = self.totals.setdefault(commit, {}).setdefault(unit.source, Counter())
        counts["units"] += 1
        counts["took_s"] += round(result.took_s)
        counts.update(result.counts)
        if result.verdict is UnitVerdict.NOT_RUN:
            counts["not_run"] += 1
        if result.verdict in (UnitVerdict.PASSED, UnitVerdict.NOT_RUN):
            return None
        counts["findings"] += 1
        finding = CampaignFinding(
            commit,
            unit.source,
            result.verdict.value,
            result.exit_code,
            unit.command_line,
            _end_of(result.output),
        )
        if len(self.findings) < FINDING_COUNT_MAX:
            self.findings.append(finding)
        return finding

    def save(self, path: Path) -> None:
        """Replace the file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".new")
        document = {
            "version": _VERSION,
            "run_id": self.run_id,
            "next_numbers": self.next_numbers,
            "spent_s": self.spent_s,
            "totals": self.totals,
            "findings": [asdict(one) for one in self.findings],
        }
        temporary.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
        os.replace(temporary, path)


def _end_of(output: str) -> str:
    """Return the last lines of an output, the first of them cut where they are too much."""
    end = "\n".join(output.splitlines()[-_LAST_LINES:]).encode()[-FINDING_SIZE_BYTES_MAX:]
    return end.decode("utf-8", "ignore")


@contextmanager
def taken(path: Path) -> Iterator[None]:
    """Keep a state file for one campaign. Raises StateTakenError if another one runs with it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as file:  # The state is replaced: it cannot be locked.
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateTakenError(path) from None
        yield


def load_state(path: Path) -> CampaignState:
    """Return the state in a file, or a new one without a file. Raises StateDamagedError."""
    if not path.exists():
        return CampaignState(secrets.token_hex(4))
    try:
        found = json.loads(path.read_text("utf-8"))
        if found.pop("version") != _VERSION:
            raise ValueError("another version")
        found["totals"] = totals_of(found["totals"])
        found["findings"] = [CampaignFinding(**one) for one in found["findings"]]
        return CampaignState(**found)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateDamagedError(
            f"{path} is no state of a campaign ({error!r}); remove it, or give another --state"
        ) from error


def totals_of(document: Any) -> Totals:
    """Return totals from their JSON. Raises AttributeError, TypeError or ValueError."""
    return {
        commit: {
            source: Counter({name: int(count) for name, count in counts.items()})
            for source, counts in sources.items()
        }
        for commit, sources in document.items()
    }

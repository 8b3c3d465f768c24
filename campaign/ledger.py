"""The ledger: what all campaigns did, by commit, and what they found.

Owns `recorded.json` (totals of each state that was ever recorded here, by its id, so that recording
one again replaces it) and the page that is made of it and of `findings.md`, which people write.
Must not know how units run.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Final

from campaign.state import CampaignState, Totals, totals_of
from campaign.unit import ROOT

RECORDED: Final = ROOT / "campaign" / "recorded.json"
FINDINGS: Final = ROOT / "campaign" / "findings.md"
PAGE: Final = ROOT / "docs" / "campaigns.md"

Recorded = dict[str, Totals]
"""Totals by id of a state."""

_HEAD: Final = """\
# Campaigns

Made by `python -m campaign ledger` from `campaign/recorded.json` and `campaign/findings.md`.

`python -m campaign run --hours H` interleaves seeds of the simulators, chaos suites in all modes,
planted faults and fuzzers, as far as the machine has what they need, and resumes where its state
file says that it stopped. A unit that has ended does not run again, and an interrupted unit does.
With another state file, as on another machine, numbers begin at 1 again. What was recorded is
below, by commit (`+`: with changes that were not committed); a source without a row was not
recorded, and nothing is said of it. "-" is what a source does not count, or had none of. "Findings"
counts units that failed or had to be ended, whether the fault was one of the product, of a test or
of a checker; what they were is at the end. A unit that could not run on a machine is counted as
such and proves nothing.
"""
_COLUMNS: Final = (
    ("units", "units"),
    ("seeds", "seeds"),
    ("simulated_s", "simulated time"),
    ("scenarios", "scenarios"),
    ("faults", "faults"),
    ("operations", "operations"),
    ("mutants", "planted faults"),
    ("inputs", "inputs"),
    ("not_run", "could not run"),
    ("findings", "findings"),
)
_OF_ALL: Final = ("units", "not_run", "findings")
"""Columns in which every source counts; in others it has no number if it counted nothing."""


def load_recorded(path: Path = RECORDED) -> Recorded:
    """Return what is recorded."""
    if not path.exists():
        return {}
    return {run_id: totals_of(totals) for run_id, totals in json.loads(path.read_text()).items()}


def record(state: CampaignState, path: Path = RECORDED) -> Recorded:
    """Put the totals of a state in the place of its former ones; return all."""
    recorded = load_recorded(path)
    if state.totals:
        recorded[state.run_id] = state.totals
    path.write_text(json.dumps(recorded, indent=1, sort_keys=False) + "\n", "utf-8")
    return recorded


def by_commit(recorded: Recorded) -> Totals:
    """Return the totals of all states together, commits in the order in which they came."""
    sums: Totals = {}
    for totals in recorded.values():
        for commit, sources in totals.items():
            for source, counts in sources.items():
                sums.setdefault(commit, {}).setdefault(source, Counter()).update(counts)
    return sums


def page_of(recorded: Recorded, findings: str) -> str:
    """Return the page."""
    commits = by_commit(recorded)
    sources: dict[str, Counter[str]] = {}
    for of_commit in commits.values():
        for source, counts in of_commit.items():
            sources.setdefault(source, Counter()).update(counts)
    everything = sum(sources.values(), Counter[str]())
    parts = [_HEAD, "## Totals\n"]
    if not commits:
        return "\n".join([*parts, "No campaign has been recorded yet.\n", findings.strip() + "\n"])
    between = f"From commit {next(iter(commits))} to {list(commits)[-1]}:\n"
    rows = [*sources.items(), ("all", everything)]
    parts += [between, _table("source", rows), "\n## By commit\n"]
    for commit, of_commit in commits.items():
        parts += [f"### {commit}\n", _table("source", list(of_commit.items())) + "\n"]
    return "\n".join(parts).rstrip() + "\n\n" + findings.strip() + "\n"


def _table(first: str, rows: list[tuple[str, Counter[str]]]) -> str:
    columns = [(key, title) for key, title in _COLUMNS if any(counts[key] for _, counts in rows)]
    columns += [] if any(key == "findings" for key, _ in columns) else [_COLUMNS[-1]]
    lines = [
        f"| {first} | time | " + " | ".join(title for _, title in columns) + " |",
        "|---" * (2 + len(columns)) + "|",
    ]
    for name, counts in rows:
        cells = [_shown(key, counts[key]) for key, _ in columns]
        lines.append(f"| {name} | {_time(counts['took_s'])} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _shown(key: str, count: int) -> str:
    if not count and key not in _OF_ALL:
        return "-"
    return _time(count) if key == "simulated_s" else f"{count:,}"


def _time(seconds: int) -> str:
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3_600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3_600:.1f} h"

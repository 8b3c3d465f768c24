"""Of measured runs the repository keeps tables and one plot a place, and no raw results."""

import re
from collections.abc import Collection, Iterator

from tests.tidy import repository
from tests.tidy.checks import Finding

_PLOTS = re.compile(r"bench/results/[^/]+/(\w+)\.svg")
_IS_KEPT = re.compile(r"bench/results/README\.md|bench/results/.+/table\.md|docs/chaos/README\.md")
_RUN = re.compile(r"^`bench/run\b[^`]*`, begun \d{4}-\d\d-\d\dT\S+, version [0-9a-f]{12}, ", re.M)


def raw_results(names: Collection[str]) -> Iterator[Finding]:
    """Find files that are neither a table nor the only plot of their place."""
    places = set()
    for name in names:
        if not name.startswith(("bench/results/", "docs/chaos/")) or _IS_KEPT.fullmatch(name):
            continue
        plot = _PLOTS.fullmatch(name)
        if plot is None:
            yield Finding(name, 0, "raw-result", "belongs to out/, which git ignores")
        elif plot[1] in places:
            yield Finding(name, 0, "raw-result", f"a second plot of {plot[1]}")
        else:
            places.add(plot[1])


def tables_without_run(name: str, text: str) -> Iterator[Finding]:
    """Find a table that does not say which command made it, when, and of which commit."""
    if not _RUN.search(text):
        yield Finding(name, 0, "unnamed-run", "name the command, the time and the version")


def test_no_raw_results_are_kept() -> None:
    assert list(raw_results(repository.files())) == []


def test_tables_name_their_run() -> None:
    tables = [n for n in repository.files() if re.fullmatch(r"bench/results/.+/table\.md", n)]
    assert tables
    for name in tables:
        assert list(tables_without_run(name, repository.text(name) or "")) == []


def test_raw_results_are_found() -> None:
    kept = ["bench/results/README.md", "bench/results/a/b/table.md", "bench/results/a/disk.svg"]
    raw = ["bench/results/a/result.json", "bench/results/b/disk.svg", "docs/chaos/raft.html"]
    assert [finding.path for finding in raw_results([*kept, *raw, "bench/run"])] == raw


def test_a_table_without_its_run_is_found() -> None:
    run = "`bench/run -o out`, begun 2026-11-22T11:14:03+00:00, version 5ee0895eef07, on 2 cores"
    assert list(tables_without_run("t", run)) == []
    assert list(tables_without_run("t", run.replace("version", "of"))) != []

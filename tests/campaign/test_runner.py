"""A campaign divides its time, goes on where it stopped, and keeps what it found."""

import importlib.util
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from campaign import unit as unit_module
from campaign.fuzz.targets import TARGETS
from campaign.runner import LAG_S_MAX, CampaignRun, chosen_sources, commit_of
from campaign.sources import FUZZ_INPUTS, SOURCES, WorkSource
from campaign.state import (
    FINDING_SIZE_BYTES_MAX,
    CampaignFinding,
    CampaignState,
    StateDamagedError,
    load_state,
)
from campaign.unit import ROOT, UnitResult, UnitVerdict, WorkUnit
from tests.patience import wait_for

FAKE = "tests.campaign.fake_units"


class Shown:
    """Notes what is shown."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[UnitResult] = []

    def begin(self, unit: WorkUnit) -> None:
        self.begun.append(unit.title)

    def end(self, result: UnitResult, finding: CampaignFinding | None) -> None:
        del finding
        self.ended.append(result)


def source(
    name: str, *kinds: str, weight: int = 1, limit_s: float = 60.0, missing: str = ""
) -> WorkSource:
    """Return a source whose units take turns; its counts are those of the simulators."""

    def unit(number: int) -> WorkUnit:
        what = kinds[number % len(kinds)]
        return WorkUnit(name, f"{name} {number}", FAKE, (what,), limit_s, not_run_code=3)

    return WorkSource(name, weight, unit, SOURCES["core"].counts, lambda: missing)


class Turns:
    """A clock that allows a count of units."""

    def __init__(self, count: int) -> None:
        self._left: Iterator[float] = iter([0.0] * (count + 1))

    def __call__(self) -> float:
        return next(self._left, 1.0)


def run(
    path: Path, *sources: WorkSource, count: int, commit: str = "abc"
) -> tuple[CampaignRun, Shown]:
    return run_at(path, *sources, count=count, commit=lambda: commit)


def run_at(
    path: Path, *sources: WorkSource, count: int, commit: Callable[[], str]
) -> tuple[CampaignRun, Shown]:
    shown = Shown()
    campaign = CampaignRun(sources, load_state(path), path, commit, shown, monotonic_s=Turns(count))
    campaign.run(0.5)
    return campaign, shown


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "campaign" / "state.json"


@pytest.mark.long
def test_totals_are_kept_by_commit_and_numbers_go_on(path: Path) -> None:
    run(path, source("a", "pass"), count=2, commit="one")
    _, shown = run(path, source("a", "pass"), count=1, commit="two")
    assert shown.begun == ["a 2"]
    state = load_state(path)
    assert state.next_numbers == {"a": 3}
    one, two = state.totals["one"]["a"], state.totals["two"]["a"]
    assert (one["units"], one["seeds"], one["simulated_s"]) == (2, 10, 24)
    assert (one["faults"], one["operations"], one["findings"]) == (6, 80, 0)
    assert (two["units"], two["seeds"]) == (1, 5)


@pytest.mark.long
def test_a_unit_that_fails_is_a_finding_with_its_command(path: Path) -> None:
    campaign, _ = run(path, source("a", "pass", "fail"), count=2)
    (finding,) = campaign.findings
    assert finding.command_line == f"python -m {FAKE} fail"
    assert (finding.verdict, finding.exit_code, finding.commit) == ("failed", 1, "abc")
    assert "replay with: python -m x replay 7" in finding.output
    state = load_state(path)
    assert state.findings == [finding]
    assert state.totals["abc"]["a"]["findings"] == 1
    assert state.totals["abc"]["a"]["seeds"] == 10


def _is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.long
def test_a_unit_that_hangs_is_ended_with_its_children_and_is_a_finding(path: Path) -> None:
    campaign, shown = run(path, source("a", "hang", limit_s=6.0), count=1)
    (finding,) = campaign.findings
    assert finding.verdict == "hung"
    (result,) = shown.ended
    child = int(result.output.split()[1])
    wait_for("the end of the child", lambda: _is_gone(child))


@pytest.mark.long
def test_the_children_of_a_unit_have_time_to_end_when_they_are_asked(path: Path) -> None:
    """As a suite's have, which put back what they did to the machine; the unit is gone at once."""
    _, shown = run(path, source("a", "tidy", limit_s=2.0), count=1)
    (result,) = shown.ended
    assert result.verdict is UnitVerdict.HUNG
    assert result.output.split() == ["ready", "tidied"]


@pytest.mark.long
def test_a_child_that_does_not_end_is_killed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_module, "END_S_MAX", 0.5)
    _, shown = run(path, source("a", "deaf", limit_s=2.0), count=1)
    assert _is_gone(int(shown.ended[0].output.split()[1]))


@pytest.mark.long
def test_a_unit_that_says_too_much_is_ended(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_module, "LOG_SIZE_BYTES_MAX", 1 << 20)
    campaign, shown = run(path, source("a", "flood"), count=1)
    (finding,) = campaign.findings
    assert (finding.verdict, shown.ended[0].verdict) == ("flooded", UnitVerdict.FLOODED)
    assert load_state(path).totals["abc"]["a"]["findings"] == 1


@pytest.mark.long
def test_each_unit_is_counted_at_the_commit_that_it_ran_at(path: Path) -> None:
    commits = iter(["one", "two"])
    campaign, _ = run_at(path, source("a", "pass"), count=2, commit=lambda: next(commits))
    assert [*campaign.commits] == [*load_state(path).totals] == ["one", "two"]


@pytest.mark.parametrize("output", ["x" * 100_000, "é" * 100_000, ("y" * 500 + "\n") * 100])
def test_a_finding_keeps_a_bounded_end_of_the_output(output: str) -> None:
    unit = WorkUnit("a", "a 0", FAKE, (), 1.0)
    finding = CampaignState("id").take(UnitResult(unit, UnitVerdict.FAILED, 1, 1.0, output), "abc")
    assert finding is not None
    assert FINDING_SIZE_BYTES_MAX - 4 < len(finding.output.encode()) <= FINDING_SIZE_BYTES_MAX
    assert output.rstrip("\n").endswith(finding.output)


@pytest.mark.long
def test_a_unit_that_cannot_run_here_is_counted_and_no_finding(path: Path) -> None:
    campaign, shown = run(path, source("a", "missing"), count=1)
    assert campaign.findings == []
    assert shown.ended[0].verdict is UnitVerdict.NOT_RUN
    assert load_state(path).totals["abc"]["a"]["not_run"] == 1


@pytest.mark.long
def test_sources_get_time_by_their_weight(path: Path) -> None:
    state = CampaignState("id", spent_s={"a": 10.0, "b": 10.0})
    state.save(path)
    _, shown = run(path, source("a", "pass"), source("b", "pass", weight=3), count=1)
    assert shown.begun == ["b 0"]


@pytest.mark.long
def test_a_source_that_was_away_is_an_hour_behind_at_most(path: Path) -> None:
    CampaignState("id", spent_s={"a": 100_000.0}).save(path)
    _, shown = run(path, source("a", "pass"), source("new", "pass", weight=2), count=1)
    assert shown.begun == ["new 0"]
    spent_s = load_state(path).spent_s
    assert spent_s["a"] == 100_000.0
    assert spent_s["new"] == pytest.approx(2 * (100_000.0 - LAG_S_MAX), abs=60.0)


@pytest.mark.long
def test_an_interrupted_unit_runs_again(path: Path) -> None:
    # A shell starts what runs behind it with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        campaign, shown = run(path, source("a", "interrupt"), count=3)
    finally:
        signal.signal(signal.SIGINT, before)
    assert campaign.is_interrupted
    assert campaign.findings == []
    assert (shown.begun, shown.ended) == (["a 0"], [])
    assert load_state(path).next_numbers == {}


def test_a_damaged_state_is_refused_by_name(path: Path) -> None:
    path.parent.mkdir()
    for text in ("", "{}", '{"version": 7}', "[]", '{"version": 1, "totals": 5}'):
        path.write_text(text)
        with pytest.raises(StateDamagedError, match=r"state\.json"):
            load_state(path)


def test_sources_are_chosen_by_name_and_by_what_is_there() -> None:
    table = {"a": source("a", "pass"), "b": source("b", "pass", missing="no b here")}
    told: list[str] = []
    assert [one.name for one in chosen_sources(table, None, told.append)] == ["a"]
    assert told == ["campaign: without b: no b here"]
    assert [one.name for one in chosen_sources(table, "a", told.append)] == ["a"]
    with pytest.raises(ValueError, match="no b here"):
        chosen_sources(table, "a,b", told.append)
    with pytest.raises(ValueError, match="no source c; there are a, b"):
        chosen_sources(table, "c", told.append)


def test_no_two_units_of_a_source_are_equal() -> None:
    for one in SOURCES.values():
        commands = [one.unit(number).command_line for number in range(200)]
        assert len(set(commands)) == 200
        assert all(command.startswith(("python -m", "PYTHONPATH=")) for command in commands)


def test_atheris_has_every_second_seed_where_it_is_installed() -> None:
    fuzz, count = SOURCES["fuzz"], len(TARGETS)
    rounds = [{fuzz.unit(n).arguments[-1] for n in range(at * count, (at + 1) * count)}
              for at in range(3)]  # fmt: skip
    own = {str(FUZZ_INPUTS)}
    other = own if importlib.util.find_spec("atheris") is None else {"--atheris"}
    assert rounds == [own, other, own]


@pytest.mark.parametrize(
    ("name", "output", "counts"),
    [
        (
            "core",
            "9 events in 1.0 s, 9/s; 33 simulated s, 4 faults, 50 operations\n7 passed, 1 failed\n",
            {"seeds": 8, "simulated_s": 33, "faults": 4, "operations": 50},
        ),
        ("ha", "900 events, 44 acked, 3 promotions\n5 passed, 0 failed\n",
         {"seeds": 5, "operations": 44}),
        ("chaos", "passed   kill   grpc    4.0 s   12 faults    1,040 operations   90 MiB\n" * 2,
         {"scenarios": 2, "faults": 24, "operations": 2_080}),
        ("world", "seed 3: I7\n  9.5 simulated s, 8 events, 7 faults, 6 acked, trace 0a\n"
         "19 passed, 1 failed; 1200 simulated s, 41 faults, 900 operations in 31 s\n",
         {"seeds": 20, "simulated_s": 1_200, "faults": 41, "operations": 900}),
        ("mutants", '{\n  "planted": 10,\n "x": 1}', {"mutants": 10}),
        ("fuzz", "ns-wire: 20000 inputs, 5 accepted, 3 kept, 9 edges, 0 crashes\n",
         {"inputs": 20_000}),
    ],
)  # fmt: skip
def test_counts_are_read_from_what_a_unit_says(
    name: str, output: str, counts: dict[str, int]
) -> None:
    assert +SOURCES[name].counts(output) == Counter(counts)


def _only(unit: WorkUnit, _number: int) -> WorkUnit:
    return unit


@pytest.mark.long
def test_real_units_are_counted(path: Path) -> None:
    """The commands themselves, with the smallest amount of work."""
    for name, arguments in (
        ("core", ("run", "--seeds", "1..2", "--events", "200")),
        ("ha", ("run", "--seeds", "1..2")),
        ("fuzz", ("fuzz", "raft-configuration", "--count", "50")),
    ):
        real = SOURCES[name]
        unit = real.unit(0)
        short = WorkUnit(name, "short", unit.module, arguments, 120.0)
        once = WorkSource(name, 1, partial(_only, short), real.counts)
        campaign, shown = run(path, once, count=1)
        assert campaign.findings == [], shown.ended[0].output
        counts = shown.ended[0].counts
        assert counts["seeds"] == 2 or counts["inputs"] == 50, shown.ended[0].output
        assert counts["operations"] > 0 or name == "fuzz"


@pytest.mark.long
def test_commits_are_told_apart(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        names = ("-c", "user.name=n", "-c", "user.email=e")
        subprocess.run(["git", *names, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "a").write_text("1")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "campaigns.md").write_text("1")
    git("add", ".")
    git("commit", "-q", "-m", "x")
    clean = commit_of(tmp_path)
    (tmp_path / "docs" / "campaigns.md").write_text("2")
    assert commit_of(tmp_path) == clean
    (tmp_path / "a").write_text("2")
    assert commit_of(tmp_path) == clean + "+"


@pytest.mark.long
def test_the_command_says_what_it_found(path: Path) -> None:
    command = [sys.executable, "-m", "campaign", "run", "--hours", "0", "--state", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ran 0 units" in done.stdout
    wrong = subprocess.run([*command, "--only", "x"], cwd=ROOT, capture_output=True, check=False)
    assert wrong.returncode == 2

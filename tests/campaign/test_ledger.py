"""The ledger counts each state once, and the page is what it says."""

from collections import Counter
from pathlib import Path

from campaign.ledger import (
    FINDINGS,
    PAGE,
    Recorded,
    by_commit,
    load_recorded,
    page_of,
    record,
)
from campaign.state import CampaignState


def a_state(run_id: str, units: int) -> CampaignState:
    counts = Counter(units=units, seeds=100 * units, simulated_s=7_200, took_s=90, faults=1_234)
    return CampaignState(run_id, totals={"abc": {"core": counts}})


def test_a_state_that_is_recorded_again_replaces_its_former_totals(tmp_path: Path) -> None:
    path = tmp_path / "recorded.json"
    record(a_state("x", 1), path)
    record(a_state("y", 5), path)
    record(a_state("x", 2), path)
    assert load_recorded(path) == {"x": a_state("x", 2).totals, "y": a_state("y", 5).totals}
    assert by_commit(load_recorded(path))["abc"]["core"]["units"] == 7


def test_an_empty_state_records_nothing(tmp_path: Path) -> None:
    assert record(CampaignState("x"), tmp_path / "recorded.json") == {}


def test_a_page_shows_totals_and_each_commit_and_ends_with_the_findings() -> None:
    fuzz = Counter(units=1, inputs=20_000, took_s=30, findings=1)
    recorded: Recorded = {
        "x": a_state("x", 1).totals,
        "y": {"def": {"fuzz": fuzz, "core": Counter(units=1, seeds=5, took_s=4_000)}},
    }
    page = page_of(recorded, "## Found and mended\n\nNothing.\n")
    assert "From commit abc to def:" in page
    assert "| source | time | units | seeds | simulated time | faults | inputs | findings |" in page
    assert "| core | 1.1 h | 2 | 105 | 2.0 h | 1,234 | - | 0 |" in page
    assert "| fuzz | 30 s | 1 | - | - | - | 20,000 | 1 |" in page
    assert "| all | 1.1 h | 3 | 105 | 2.0 h | 1,234 | 20,000 | 1 |" in page
    assert page.index("### abc") < page.index("### def")
    assert page.endswith("## Found and mended\n\nNothing.\n")


def test_the_page_in_the_repository_is_current() -> None:
    """Else run: python -m campaign ledger"""
    assert PAGE.read_text("utf-8") == page_of(load_recorded(), FINDINGS.read_text("utf-8"))

"""Two minutes of the fault-injection suites, as `chaos-tests/run` runs them, in every run of all.

The machine may have no Go to build Toxiproxy with: then the whole is skipped, with that reason;
where `CI` is set that is a failure.
"""

import json
import re
import subprocess
from pathlib import Path

import pytest
from chaos.campaign import FEATURES, SHORT, SLICE
from chaos.errors import NotPossibleHereError
from chaos.scenario import SCENARIOS
from chaos.scenarios import network
from chaos.toxiproxy import install

from tests import missing

RUN = Path(network.__file__).resolve().parents[2] / "run"
TIMEOUT_S = 900


@pytest.mark.slow
def test_the_slice(tmp_path: Path) -> None:
    try:
        install()
    except NotPossibleHereError as reason:
        missing.injector(reason)
    done = subprocess.run(
        [str(RUN), "--slice", "--artifacts", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout
    summary = json.loads(next(tmp_path.glob("*/summary.json")).read_text())
    assert summary["lost"] == summary["anomalies"] == 0
    assert summary["passed"] + len(summary["skipped"]) == len(SLICE)
    assert summary["acked"] > 0
    page = next(tmp_path.glob("*/report.html")).read_text()
    assert page.count("<svg") == summary["passed"]
    assert "<script src" not in page
    assert "<link" not in page


def test_tiers_name_scenarios_and_every_scenario_names_rows() -> None:
    assert set(SHORT) | set(SLICE) | set(FEATURES) <= set(SCENARIOS)
    assert len(SHORT) == 12
    for scenario in SCENARIOS.values():
        assert scenario.rows, f"{scenario.name} stands for no row of the fault matrix"
        assert scenario.title.endswith((".", ":")) or len(scenario.title) > 20


def test_the_table_of_rows_names_every_scenario_and_no_other() -> None:
    text = (RUN.parent / "README.md").read_text("utf-8")
    table = text.partition("## Which scenario stands for which fault")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if re.match(r"\| [A-Z]\d", line)]
    named: dict[str, set[str]] = {}
    for line in lines:
        rows = re.match(r"\| ((?:[A-Z]\d+(?:, )?)+)", line)
        assert rows is not None, line
        for row in rows[1].split(", "):
            named.setdefault(row, set()).update(re.findall(r"`([a-z-]+)`", line))
    assert set().union(*named.values()) == set(SCENARIOS)
    for scenario in SCENARIOS.values():
        for row in scenario.rows:
            assert scenario.name in named[row], f"{row} does not name {scenario.name}"

"""Some of the fault-injection suites, as `chaos-tests/run` runs them.

Without Toxiproxy the whole is skipped, with that reason; where `CI` is set that is a failure.
"""

import contextlib
import json
import re
import subprocess
from pathlib import Path

import hosts.scenarios  # noqa: F401  Registers them.
import psutil
import pytest
from chaos.campaign import FEATURES, SHORT, SLICE
from chaos.scenario import SCENARIOS
from chaos.scenarios import network
from hosts.registry import HOST_SCENARIOS

from deploy.local_process import NodeProcess
from quorumlog.local_cluster import started_at
from tests import missing
from tests.patience import wait_for

RUN = Path(network.__file__).resolve().parents[2] / "run"
TIMEOUT_S = 900
END_TIMEOUT_MS = 60_000


@pytest.mark.parametrize(
    ("words", "count"),
    [
        pytest.param(["isolate-leader", "--seed", "1"], 1, id="isolate-leader"),
        pytest.param(["--slice", "--judge-times"], len(SLICE), id="slice", marks=pytest.mark.long),
    ],
)
def test_scenarios_end_with_a_report(words: list[str], count: int, tmp_path: Path) -> None:
    missing.installed("toxiproxy")
    done = subprocess.run(
        [str(RUN), *words, "--artifacts", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout
    summary = json.loads(next(tmp_path.glob("*/summary.json")).read_text())
    assert summary["lost"] == summary["anomalies"] == 0
    assert summary["passed"] + len(summary["skipped"]) == count
    assert summary["acked"] > 0
    page = next(tmp_path.glob("*/report.html")).read_text()
    assert page.count("<svg") == summary["passed"]
    assert "<script src" not in page
    assert "<link" not in page


@pytest.mark.long
def test_a_killed_run_leaves_neither_nodes_nor_proxies(tmp_path: Path) -> None:
    missing.installed("toxiproxy")
    words = [str(RUN), "kill-leader", "--artifacts", str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT) as run:
        try:
            started = wait_for(
                "three nodes and a proxy", lambda: nodes_and("-proxy-metrics", run.pid)
            )
        finally:
            run.kill()
    for process in started:
        assert process.wait_end(END_TIMEOUT_MS), "a process outlived the run"


def nodes_and(word: str, run: int) -> list[NodeProcess]:
    """Return the processes of a run, once there are three nodes and one with this word."""
    processes, kinds = [], []
    with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
        for child in psutil.Process(run).children(recursive=True):
            line = " ".join(child.cmdline())
            kinds += [kind for kind in ("-m node", word) if kind in line]
            processes.append(NodeProcess(child.pid, started_at(child.pid)))
    return processes if sorted(kinds) == sorted(["-m node"] * 3 + [word]) else []


def test_tiers_name_scenarios_and_every_scenario_names_rows() -> None:
    assert set(SHORT) | set(SLICE) | set(FEATURES) <= set(SCENARIOS)
    assert len(SHORT) == 12
    for scenario in (*SCENARIOS.values(), *HOST_SCENARIOS.values()):
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

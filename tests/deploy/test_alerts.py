"""The alerts: their page is current, their conditions name what nodes show, and mean it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.alerts import PAGE_FILE, RULES_FILE, alerts, page
from node.metrics import METRICS
from node.monitoring.metric import PREFIX
from node.nameserver.replica.status import STATES
from node.peers.handshake import CloseCode
from raft.messages import Standing
from raft.transitions import Role
from tests import missing
from tests.tidy import documents, repository

PROMTOOL = shutil.which("promtool")
SCRAPE_LABELS = {"job", "instance", "le"}
VALUES = {
    "role": {role.name.lower() for role in Role},
    "standing": {standing.name.lower() for standing in Standing},
    "state": set(STATES),
    "code": {str(code) for code in CloseCode},
    "job": {"quorumlog"},
}
LABELS = {name: set(labels) for name, labels in documents.shown_metrics(METRICS, PREFIX).items()}


def test_the_page_is_current() -> None:
    assert repository.text(PAGE_FILE) == page(), f"run: python -m deploy.alerts > {PAGE_FILE}"


def test_conditions_name_what_nodes_show() -> None:
    rules = alerts()
    assert {rule.name: problems for rule in rules if (problems := faults(rule.condition))} == {}
    assert len({rule.name for rule in rules}) == len(rules) > 0


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("quorumlog_ready == 0", []),
        ("quorumlog_redy == 0", ["quorumlog_redy"]),
        ("increase(quorumlog_store_full[5m]) > 0", ["quorumlog_store_full"]),
        ("rate(quorumlog_sync_seconds_bucket[5m])", []),
        ('quorumlog_role{group="leader"}', ["quorumlog_role{group}"]),
        ('quorumlog_role{role="master"}', ["role=master"]),
        ('quorumlog_peer_closed_total{code=~"tls|bad_aut"}', ["code=bad_aut"]),
        ("sum by (zone) (quorumlog_ready)", ["zone"]),
        ("quorumlog_ready * on (job, instance) group_left (version) quorumlog_node", []),
        ("a * on (job, instance) group_left (state) quorumlog_node", ["state"]),
    ],
)
def test_planted_faults_are_found(condition: str, found: list[str]) -> None:
    assert faults(condition) == found


def faults(condition: str) -> list[str]:
    """Metrics, labels and values of labels that no node shows."""
    names_not_shown = [x.detail for x in documents.unknown_metrics("", condition, LABELS)]
    names_not_shown += [x.detail for x in documents.unknown_labels("", condition, LABELS)]
    used = {m for m in LABELS if re.search(rf"\b{m}\b", condition)}
    labels = SCRAPE_LABELS.union(*(LABELS[m] for m in used))
    for names in re.findall(r"\b(?:by|on|group_left|group_right) \(([^)]*)\)", condition):
        names_not_shown += [name for name in re.findall(r"\w+", names) if name not in labels]
    for label, values in re.findall(r'(\w+)=~?"([^"]*)"', condition):
        if label in VALUES:
            names_not_shown += [f"{label}={v}" for v in values.split("|") if v not in VALUES[label]]
    return names_not_shown


@pytest.mark.long
def test_the_rules_do_what_they_say(tmp_path: Path) -> None:
    """Prometheus' own checker; the cases are beside the rules."""
    if PROMTOOL is None:
        missing.program("promtool of Prometheus is not in PATH")
    names = ["alerts.yml", "alerts_test.yml", "alerts_days_test.yml"]
    for name in names:
        text = repository.text(str(Path(RULES_FILE).parent / name))
        assert text is not None
        (tmp_path / name).write_text(text)
    for command in (["check", "rules", names[0]], ["test", "rules", *names[1:]]):
        done = subprocess.run(
            [PROMTOOL, *command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

"""Every step of row P2 is hit by name in each run, and the names are those of the product."""

import re
from pathlib import Path

from chaos.scenarios import failpoints

import store

ROOT = Path(store.__file__).resolve().parents[1]
ROW_P2 = {
    "write", "sync", "send", "commit", "apply", "dispatch", "truncate", "roll", "seal",
    "snapshot write", "snapshot rename", "snapshot install", "log cut", "meta replace",
    "membership phases",
}  # fmt: skip
RAFT = (failpoints.STEPS, failpoints.STEPS_OF_RAFT, failpoints.STEPS_OF_LEADERS,
        failpoints.STEPS_OF_SNAPSHOTS,
        failpoints.STEPS_OF_CUTS, failpoints.STEPS_OF_CHANGES)  # fmt: skip
HA = (failpoints.STEPS, failpoints.STEPS_OF_HA, failpoints.STEPS_OF_SLAVES,
      failpoints.STEPS_OF_MASTERS, failpoints.STEPS_OF_LOSSES)  # fmt: skip


def known() -> set[str]:
    """The failpoints of the product, by its source."""
    files = [path for folder in ("store", "node") for path in (ROOT / folder).rglob("*.py")]
    texts = "".join(path.read_text("utf-8") for path in files)
    return set(re.findall(r'\b(?:hit|_call)\("([a-z_.]+)"', texts))


def test_every_step_of_the_row_has_a_point() -> None:
    assert set().union(*RAFT) == ROW_P2
    # Members of a master-slave group are fixed, and it has no snapshots of its log to install.
    missing = {"snapshot install", "log cut", "membership phases"}
    assert set().union(*HA) == ROW_P2 - missing


def test_every_point_is_one_of_the_product() -> None:
    named = {point for one in (*RAFT, *HA) for points in one.values() for point in points}
    assert named | set(failpoints.CALLS) | set(failpoints.PASSES) <= known()


def test_steps_in_pairs_are_hit_before_and_after() -> None:
    pairs = [
        (after, points)
        for one in (failpoints.STEPS_OF_RAFT, failpoints.STEPS_OF_HA, failpoints.STEPS_OF_SLAVES)
        for points in one.values()
        for point in points
        if ".before_" in point and (after := point.replace(".before_", ".after_")) in known()
    ]
    assert pairs
    assert [after for after, points in pairs if after not in points] == []

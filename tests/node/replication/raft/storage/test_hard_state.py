"""The file with term and vote: what it says is checked field by field."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.replication.raft.storage.hard_state import NAME, NodeFile, NodeRecord
from raft.messages import Configuration, ConfigurationAt, Standing
from raft.ready import HardState
from store.errors import CorruptionError
from store.files.file_system import FileSystem
from store.files.meta_file import MetaFile

MISSING = object()
RECORD = NodeRecord(
    "c",
    2,
    True,
    HardState(7, 3, Standing.RECOVERING, 6),
    ConfigurationAt(4, Configuration((1, 2, 3), (5,))),
    (4, 9),
    True,
    ConfigurationAt(2, Configuration((1, 2))),
    8,
    "topics behind log position 7",
    7,
    6,
    9,
)


def saved(root: Path, record: NodeRecord = RECORD) -> tuple[MetaFile, dict[str, Any]]:
    file = NodeFile(FileSystem(), str(root))
    file.load("c", 2, must_exist=False)
    file.save(record)
    meta = MetaFile(FileSystem(), str(root), NAME)
    payload = meta.load(must_exist=True)
    assert payload is not None
    return meta, payload


def load(root: Path) -> NodeRecord:
    return NodeFile(FileSystem(), str(root)).load("c", 2, must_exist=True)


def test_a_diverged_node_is_written_as_one_that_joins(tmp_path: Path) -> None:
    """One that joins neither votes nor counts."""
    diverged = replace(RECORD, hard_state=HardState(7, 3, Standing.DIVERGED, 5))
    _, payload = saved(tmp_path, diverged)
    assert payload["standing"] == "JOINING"
    assert load(tmp_path) == diverged


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("cluster_id", 7),
        ("node_id", 0),
        ("term", -1),
        ("state_fence", 7),
        ("state_fence_position", -2),
        ("term", "7"),
        ("term", True),
        ("vote", None),
        ("incarnation", 1.5),
        ("standing", "UPRIGHT"),
        ("base_configuration", 7),
        ("base_configuration", {"index": 4, "voters": [0], "learners": []}),
        ("former_base_configuration", {"index": -2, "voters": [1], "learners": []}),
        ("configuration_indexes", [4, -1]),
        ("configuration_indexes", 4),
        *((field, MISSING) for field in ("cluster_id", "term", "vote", "standing")),
        *((field, MISSING) for field in ("life", "state_fence", "state_fence_position")),
        *((field, MISSING) for field in ("base_configuration", "former_base_configuration")),
    ],
)
def test_a_field_that_cannot_be_is_refused_by_name(
    tmp_path: Path, field: str, wrong: object
) -> None:
    """The checksum is right, so no disk did it: nothing is guessed, least of all a vote."""
    meta, payload = saved(tmp_path)
    fields = {**payload, field: wrong}
    meta.save({name: value for name, value in fields.items() if value is not MISSING})
    with pytest.raises(CorruptionError, match=f"{NAME}: {field}"):
        load(tmp_path)

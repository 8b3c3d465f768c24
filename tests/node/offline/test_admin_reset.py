"""`qlog store reset-admin`: which directories it takes, and what it leaves in them."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from node.config.users import RESET_FILE
from node.offline.owner_files import NODE_FILES
from node.replication.ha.core.types import HaSettings
from node.replication.ha.storage.replica_file import open_replica_file
from node.replication.raft.storage.log import LedgerLog
from qlog import main
from quorumlog.user_tokens import first_user_text
from raft.messages import Configuration
from raft.ready import EntryKind
from store.files.file_system import FileSystem
from store.fsck.check import verify
from tests.store.records import small_config


def reset(file: Path, *directories: Path, output: str = "table") -> tuple[int, str]:
    words = ["store", "reset-admin", *map(str, directories), "--users-file", str(file)]
    done = CliRunner().invoke(main, [*words, "-o", output], prog_name="qlog")
    return done.exit_code, done.stdout + done.stderr


def node_at(root: Path, node_id: int, cluster_id: str = "c") -> LedgerLog:
    config = small_config(container="ledger")
    return LedgerLog.open(str(root), config, cluster_id=cluster_id, node_id=node_id)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "new.json").write_text(first_user_text("admin", b"t" * 32))
    return tmp_path / "new.json"


@pytest.fixture
def roots(tmp_path: Path) -> list[Path]:
    """Directories of nodes 1 to 4 of a cluster whose voters were 1 to 3, and are 1 to 4; the last
    two know nothing of the change."""
    for node_id in range(1, 5):
        (tmp_path / str(node_id)).mkdir()
        with node_at(tmp_path / str(node_id), node_id) as log:
            log.found((1, 2, 3))
            if node_id < 3:
                log.start_at(-1)
                log.append(0, 1, EntryKind.CONFIGURATION, Configuration((1, 2, 3, 4)))
    return [tmp_path / str(node_id) for node_id in range(1, 5)]


def test_the_newest_configuration_says_what_is_a_majority(file: Path, roots: list[Path]) -> None:
    code, said = reset(file, roots[3], roots[0], output="json")
    assert code == 0, said
    first = json.loads(said)
    assert (first["voters"], first["node_ids"]) == ([1, 2, 3, 4], [1, 4])
    assert (first["user"], first["is_majority"]) == ("admin", False)
    second = json.loads(reset(file, *roots[:3], output="json")[1])
    assert (second["reset_id"], second["is_majority"]) == (first["reset_id"], True)
    assert {(root / RESET_FILE).read_bytes() for root in roots} == {file.read_bytes()}
    assert list(verify(str(roots[2]), owner=NODE_FILES)) == []


def test_replicas_of_a_master_slave_group_are_its_voters(tmp_path: Path, file: Path) -> None:
    fs, group = FileSystem(), HaSettings("g0", (1, 2, 3))
    open_replica_file(fs, str(tmp_path), cluster_id="c", node_id=3, group=group, must_exist=False)
    code, said = reset(file, tmp_path, output="json")
    assert code == 0, said
    made = json.loads(said)
    assert (made["voters"], made["node_ids"], made["is_majority"]) == ([1, 2, 3], [3], False)


def test_others_and_a_running_node_are_refused_and_nothing_changes(
    tmp_path: Path, file: Path, roots: list[Path]
) -> None:
    other, empty = tmp_path / "other", tmp_path / "empty"
    empty.mkdir()
    with node_at(other, 1, "another") as log:
        log.found((1, 2))
    refusals = [
        (roots[3], "[4] are not among the voters"),
        (other, "a second one of node 1"),
        (empty, "no directory of a cluster's node"),
    ]
    for root, why in refusals:
        code, said = reset(file, roots[2] if root == roots[3] else roots[0], root)
        assert (code, said.count("\n")) == (3, 3), said
        assert why in said
    assert "another and c" in reset(file, roots[1], other)[1]
    assert reset(tmp_path / "none.json", roots[0])[0] == 3
    with node_at(roots[1], 2):
        code, said = reset(file, roots[0], roots[1])
        assert (code, "in use" in said or "process" in said) == (3, True), said
    assert not list(tmp_path.glob(f"*/{RESET_FILE}*"))
    assert not (empty / "lock").exists()

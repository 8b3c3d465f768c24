"""`qlog store verify` on what a node keeps beside its log: every byte that is not as it was."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from node.config.load import load
from node.config.start_advice import Mode, advice_of, mode_of, told
from node.nameserver.replica.dump import Dump, write_dump
from node.nameserver.replica.journal import Journal
from node.offline.owner_files import NODE_FILES
from node.replication.ha.core.epochs import Epochs
from node.replication.ha.core.types import EpochStart
from node.replication.ha.storage.epoch_file import EpochFile
from node.state.checkpoint_files import CheckpointFiles
from node.state.state import EMPTY_IMAGE
from store.errors import CorruptionError, DerivedFileError, LayoutError
from store.files.file_system import FileSystem
from store.files.meta_file import MetaFile
from store.fsck.check import verify
from store.fsck.checks.meta import check_boot_id
from store.fsck.files import ReadOnlyFileSystem
from tests.store.fsck_stores import fsck_config, make_store

FS = FileSystem()
EXEMPT = ("lock", "abort", "checkpoint", "marks")
"""Checked elsewhere, or of no meaning."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with every such file, each of them a few generations old."""
    for name in ("raft", "haReplica", "haBinding", "haLosses"):
        file = MetaFile(FS, str(tmp_path), name)
        file.load(must_exist=False)
        for term in range(3):
            file.save({"term": term, "vote": 2, "cluster_id": "c"})
    files = CheckpointFiles(FS, str(tmp_path))
    files.load()
    for index in range(3):
        files.save(EMPTY_IMAGE._replace(applied_index=index), 1_700_000_000_000)
    EpochFile(FS, str(tmp_path)).save(Epochs([EpochStart(3, 0), EpochStart(9, 4096)]))
    EpochFile(FS, str(tmp_path)).save(Epochs([EpochStart(3, 0), EpochStart(10, 8192)]))
    (tmp_path / "nameserver").mkdir()
    directory = str(tmp_path / "nameserver")
    journal = Journal(FS, directory, "a:1", ["a:1", "b:1"])
    for index in range(1, 4):
        journal.add(b"command %d" % index, index, 1)
    journal.close()
    write_dump(FS, f"{directory}/dump", Dump((b"two", 2, 1), (b"one", 1, 1), {"groups": {}}))
    return tmp_path


def names(root: Path) -> Iterator[str]:
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.name not in EXEMPT and path.suffix != ".bak":
            yield str(path.relative_to(root))


def found(root: Path) -> set[str]:
    place = ReadOnlyFileSystem(), str(root)
    return {finding.path for finding in (*check_boot_id(*place), *NODE_FILES.check(*place))}


def test_every_byte_is_found_by_name(root: Path) -> None:
    assert found(root) == set()
    tried = 0
    for name in names(root):
        path = root / name
        data = path.read_bytes()
        for at in range(len(data)):
            for bit in range(8) if name.startswith(("raft", "epoch")) else (at % 8,):
                changed = bytearray(data)
                changed[at] ^= 1 << bit
                path.write_bytes(changed)
                assert name in found(root), (name, at, bit)
                tried += 1
        path.write_bytes(data)
    assert tried > 3_000
    assert found(root) == set()


def test_a_file_that_is_gone_short_or_old_is_found_by_name(root: Path) -> None:
    for name in names(root):
        path = root / name
        data = path.read_bytes()
        path.write_bytes(data[:-1])
        assert name in found(root), name
        if name.startswith(("raft", "ha", "config/")):
            path.unlink()
            assert name in found(root), name
        path.write_bytes(data)
    for base in ("raft", "haBinding", "config/stateCheckpoint"):
        older = min((root / f"{base}.{n}" for n in (0, 1)), key=lambda path: path.read_bytes()[:19])
        newer = root / f"{base}.{1 - int(older.suffix[1:])}"
        kept = older.read_bytes()
        older.write_bytes(newer.read_bytes())
        assert f"{base}{older.suffix}" in found(root), "the one generation under both names"
        older.write_bytes(kept)
    assert found(root) == set()


def test_the_boot_id_has_a_checksum(tmp_path: Path) -> None:
    make_store(tmp_path, fsck_config("ledger"), 10)
    path = tmp_path / "boot_id"
    data = path.read_bytes()
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        assert "boot_id" in found(tmp_path), bit
    path.write_bytes(data.split(b"\n")[0] + b"\n")
    assert "boot_id" in found(tmp_path), "without a checksum"


def test_verify_names_them(tmp_path: Path) -> None:
    make_store(tmp_path, fsck_config("ledger"), 10)
    file = MetaFile(FS, str(tmp_path), "raft")
    file.load(must_exist=False)
    file.save({"term": 7})
    (tmp_path / "nameserver").mkdir()
    (tmp_path / "dump-1795319861408-17121.txt").write_bytes(b"x")  # A node's last words.
    assert list(verify(str(tmp_path), owner=NODE_FILES)) == []
    path = tmp_path / "raft.1"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"7", b"6"))
    [finding] = verify(str(tmp_path), owner=NODE_FILES)
    assert (finding.path, finding.severity) == ("raft.1", "damage")


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize(
    "name",
    [
        "raft.0",
        "haBinding.1",
        "haReplica.0",
        "haLosses.0",
        "epochFileCheckpoint",
        "config",
        "config/topics.json",
        "config/stateCheckpoint.1",
        "marks",
        "commitlog/00000000000000000000",
        "dledger-n0/data/00000000000000000000",
        "dledger-n0/start.0",
    ],
)
def test_the_advice_at_start_applies(name: str, mode: Mode) -> None:
    error = CorruptionError(f"/data/{name}", 8, "payload CRC-32C", "1", "2")
    advice = advice_of(error, mode)
    assert advice is not None
    text = told(error, mode)
    assert text.startswith(f"/data/{name} byte 8: payload CRC-32C is 2, expected 1; ")
    assert text.endswith(advice)
    is_log = name.startswith(("commitlog", "dledger"))
    if name == "haLosses.0":
        assert "only reports" in advice
    elif mode is Mode.SINGLE:
        assert "restore a backup" in advice or name == "marks"
        # Who grew from one node has no others in its settings, and a backup would take it back.
        assert "if nodes were added" in advice or name == "marks"
        assert "replica" not in advice
        assert "members" not in advice
    elif mode is Mode.MASTER_SLAVE:
        assert "empty one" in advice
        assert "members" not in advice
    else:
        assert ("other nodes have these entries" if is_log else "replace this node") in advice
    assert ("store repair" in advice) == (mode is Mode.SINGLE and (is_log or name == "marks"))


def test_a_node_that_joined_has_others_also_when_its_settings_name_none(tmp_path: Path) -> None:
    flags = {"node_id": "4", "directory": str(tmp_path), "http_listen": "off"}
    assert mode_of(load(None, flags, {}).settings) is Mode.SINGLE
    assert mode_of(load(None, {**flags, "join": "true"}, {}).settings) is Mode.RAFT


def test_errors_that_say_themselves_what_to_do_stay_as_they_are() -> None:
    error = LayoutError("/data/commitlog/0", "16384 bytes", "5 bytes")
    assert told(error, Mode.RAFT) == str(error)
    assert told(OSError("no"), Mode.RAFT) == "no"
    derived = DerivedFileError("/data/consumequeue/a/0/0", 0, "unit", "1", "2")
    assert "built from the log" in told(derived, Mode.SINGLE)

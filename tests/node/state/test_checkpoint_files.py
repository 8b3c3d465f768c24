"""The checkpoint on disk: RocketMQ's shapes, and one generation or the other after any crash."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from node.state.checkpoint_files import (
    MANIFEST,
    CheckpointDamagedError,
    History,
)
from node.state.checkpoint_tables import CHECKPOINT_TABLES, decode_groups
from node.state.registry import load_table
from node.state.state import Versions
from node.state.tables.topic_types import TopicSettings
from store.errors import CorruptionError, StoreError, SyncFailedError
from store.files import failpoints
from store.files.file_system import FileSystem
from store.files.meta_file import MetaFile
from tests.node.checkpoints import SMALL, loaded, saved
from tests.store.power_loss import PowerLossFileSystem

OLD = SMALL._replace(
    applied_index=41, next_command_offset=7, versions=Versions(2, 1, 3, 4, 1), refused_count=2
)
NEW = OLD._replace(
    applied_index=60,
    next_command_offset=9,
    versions=Versions(3, 1, 4, 4, 1),
    topics={"orders": TopicSettings(8, 6)},
    groups={"readers": {"orders": {0: 124}}, "idle": {}},
)


@pytest.fixture(autouse=True)
def _all_failpoints_pass_again() -> object:
    yield
    failpoints.disarm_all()


def test_equal_versions_of_another_history_are_written_again(tmp_path: Path) -> None:
    """After a cut the same number of changes may have led somewhere else."""
    other = OLD._replace(topics={"payments": TopicSettings(2, 6)})
    files, image = loaded(tmp_path)
    assert image is None
    files.save(OLD, 1, History(1, 0))
    files.save(other, 2, History(2, 40))
    checkpoint_files, image = loaded(tmp_path)
    assert image == other
    assert (checkpoint_files.history, checkpoint_files.applied_index) == (History(2, 40), 41)


def test_the_files_have_rocketmq_shapes(tmp_path: Path) -> None:
    saved(tmp_path, OLD)
    config = tmp_path / "config"
    topics = json.loads((config / "topics.json").read_text())
    assert topics["dataVersion"] == {
        "counter": 2,
        "stateVersion": 0,
        "timestamp": 1_700_000_000_000,
    }
    assert topics["topicConfigTable"]["orders"] == {
        "attributes": {},
        "order": False,
        "perm": 6,
        "readQueueNums": 4,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "orders",
        "topicSysFlag": 0,
        "writeQueueNums": 4,
    }
    groups = json.loads((config / "subscriptionGroup.json").read_text())
    assert groups["forbiddenTable"] == {}
    assert groups["subscriptionGroupTable"]["readers"]["retryMaxTimes"] == 16
    offsets = (config / "consumerOffset.json").read_text()
    assert '"orders@readers":{0:123,3:120}' in offsets, "as fastjson: integer keys without quotes"
    assert '"%RETRY%readers@readers":{0:4}' in offsets


def test_offsets_with_quoted_keys_are_read_too(tmp_path: Path) -> None:
    groups = '{"subscriptionGroupTable":{"g":{}}}'
    for offsets in (
        '{"offsetTable":{"t@g":{0:1, 12:3}}}',
        '{"offsetTable":{"t@g":{"0":1,"12":3}}}',
    ):
        assert decode_groups(groups, offsets) == {"g": {"t": {0: 1, 12: 3}}}


def test_what_looks_like_a_key_within_a_string_stays(tmp_path: Path) -> None:
    text = r'{"a":{0:"{1:2}",-3:"\"{4:5}"},"b":"x, 6:7"}'
    assert load_table(text) == {"a": {"0": "{1:2}", "-3": '"{4:5}'}, "b": "x, 6:7"}


def test_the_text_before_is_kept_and_what_did_not_change_is_not_written(tmp_path: Path) -> None:
    saved(tmp_path, OLD)
    config = tmp_path / "config"
    first = {path.name: path.read_bytes() for path in config.iterdir()}
    saved(tmp_path, NEW)
    assert (config / "topics.json.bak").read_bytes() == first["topics.json"]
    assert (config / "producers.json").read_bytes() == first["producers.json"]
    assert not (config / "producers.json.bak").exists()


def test_a_checkpoint_never_goes_back(tmp_path: Path) -> None:
    files = saved(tmp_path, NEW)
    with pytest.raises(AssertionError, match="goes back"):
        files.save(OLD, 1)


def test_a_crash_at_each_step_leaves_one_generation_or_the_other(tmp_path: Path) -> None:
    """A copy of the directory at every changing call is what a kill there would leave."""
    images: list[Path] = []

    def keep(_: str) -> None:
        if recording:
            images.append(tmp_path / f"image{len(images)}")
            shutil.copytree(tmp_path / "live", images[-1])

    recording = False
    fs = PowerLossFileSystem(keep)
    (tmp_path / "live").mkdir()
    fs.adopt(str(tmp_path / "live"))
    files = saved(tmp_path / "live", OLD, fs=fs)
    recording = True
    files.save(NEW, 2)
    recording = False
    states = [loaded(image)[1] for image in images]
    assert len(states) >= 15
    switch = states.index(NEW)
    assert all(image == OLD for image in states[:switch])
    assert all(image == NEW for image in states[switch:])
    for image in images:
        saved(image, NEW._replace(applied_index=99, versions=Versions(9, 9, 9, 9, 9)))
        assert not list((image / "config").glob("*.tmp")), "a later save leaves nothing behind"


def test_a_power_loss_at_each_step_leaves_one_generation_or_the_other(tmp_path: Path) -> None:
    random = Random(7)
    images: list[Path] = []

    def lose(_: str) -> None:
        for _copy in range(3 if recording else 0):
            images.append(tmp_path / f"image{len(images)}")
            fs.build_image(str(live), str(images[-1]), random)

    recording, live = False, tmp_path / "live"
    fs = PowerLossFileSystem(lose)
    live.mkdir()
    fs.adopt(str(live))
    files = saved(live, OLD, fs=fs)
    recording = True
    files.save(NEW, 2)
    recording = False
    states = [loaded(image)[1] for image in images]
    assert OLD in states
    assert NEW in states
    assert all(image in (OLD, NEW) for image in states)
    lose("")
    assert loaded(images[-1])[1] == NEW, "what was saved is durable"


def test_renames_that_a_crash_left_are_finished_before_the_next_generation(tmp_path: Path) -> None:
    """That one writes under the same temporary names, and may not get far."""
    files = saved(tmp_path, OLD)
    stopped = pytest.raises(OSError, match="failpoint")
    with failpoints.armed("state_checkpoint.before_rename=EIO@1"), stopped:
        files.save(NEW, 2)
    files, image = loaded(tmp_path)
    assert image == NEW
    assert not list((tmp_path / "config").glob("*.json.tmp")), "each file has its name"
    newer = NEW._replace(applied_index=70, versions=Versions(9, 9, 9, 9, 9))
    stopped = pytest.raises(OSError, match="failpoint")
    with failpoints.armed("state_checkpoint.before_manifest=EIO"), stopped:
        files.save(newer, 3)
    assert loaded(tmp_path)[1] == NEW


def test_each_failing_call_leaves_the_old_one_or_stops_the_node(tmp_path: Path) -> None:
    probe = saved(tmp_path / "probe", OLD)
    with failpoints.census() as passes:
        probe.save(NEW, 2)
    assert {"fs.open", "fs.write", "fs.sync", "fs.rename", "fs.sync_directory"} <= set(passes)
    again_count = 0
    for name, count in passes.items():
        for nth in range(1, count + 1):
            root = tmp_path / f"{name}{nth}"
            files = saved(root, OLD)
            failpoints.arm(f"{name}=EIO@{nth}")
            with pytest.raises((StoreError, OSError)) as caught:
                files.save(NEW, 2)
            failpoints.disarm_all()
            assert loaded(root)[1] in (OLD, NEW)
            if not isinstance(caught.value, SyncFailedError):
                files.save(NEW, 3)
                assert loaded(root)[1] == NEW, "a later attempt gets through"
                again_count += 1
    assert again_count >= 3, "not every failure stops the node"


def test_every_damaged_file_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, OLD, NEW)
    for path in sorted((tmp_path / "config").glob("*.json")):
        original = path.read_bytes()
        damaged = bytearray(original)
        damaged[len(damaged) // 2] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(CorruptionError, match="CRC-32C"):
            loaded(tmp_path)
        path.unlink()
        with pytest.raises(CorruptionError, match="no such file"):
            loaded(tmp_path)
        path.write_bytes(original)
    assert loaded(tmp_path)[1] == NEW


def test_a_lost_half_of_the_manifest_is_refused_as_damage(tmp_path: Path) -> None:
    saved(tmp_path, OLD, NEW)
    (tmp_path / "config" / f"{MANIFEST}.0").unlink()
    with pytest.raises(CheckpointDamagedError, match="no such file"):
        loaded(tmp_path)


@pytest.mark.parametrize("name", [table.name for table in CHECKPOINT_TABLES])
def test_a_manifest_without_a_table_is_refused_as_damage(tmp_path: Path, name: str) -> None:
    rewrite_manifest(tmp_path, lambda found: found["files"].pop(name))
    with pytest.raises(CorruptionError, match=f"none of {name}"):
        loaded(tmp_path)


@pytest.mark.parametrize(
    "garble",
    [
        lambda found: found.update(files=None),
        lambda found: found.pop("files"),
        lambda found: found["files"].update({"topics.json": [1, 2]}),
        lambda found: found["files"].update({"topics.json": "as it was"}),
        lambda found: found.pop("applied_index"),
        lambda found: found.update(history=[1]),
    ],
)
def test_a_manifest_of_another_shape_is_refused_as_damage(
    tmp_path: Path, garble: Callable[[dict[str, Any]], object]
) -> None:
    rewrite_manifest(tmp_path, garble)
    with pytest.raises(CorruptionError, match="checkpoint"):
        loaded(tmp_path)


def rewrite_manifest(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Save a manifest that is whole and says something else."""
    saved(root, OLD)
    manifest = MetaFile(FileSystem(), str(root / "config"), MANIFEST)
    content = manifest.load(must_exist=True)
    assert content is not None
    change(content)
    manifest.save(content)

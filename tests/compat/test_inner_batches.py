"""A directory with inner batches that RocketMQ's own store wrote: ours keeps them, and goes on.

The real code of RocketMQ, from the jars of bench/peers/rocketmq/pom.xml; made ones are in
tests/store/record/test_inner_batches.py.
"""

import json
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from qlog import main
from store.errors import InnerBatchError
from store.fsck.check import verify
from store.fsck.layout import GivenSettings
from store.fsck.plan import plan
from store.record.message import encode_message
from store.store import Store
from tests.compat import foreign
from tests.compat.foreign import Line
from tests.compat.log_writer import CONFIG
from tests.store.records import messages

TOPIC: Final = "Compat"
BATCHES: Final = "CompatBatches"
COUNT: Final = 200
PLAIN_COUNT: Final = (COUNT + 6) // 7
"""Ordinary messages to the topic of inner batches."""
pytestmark = pytest.mark.long


def of(lines: list[Line], what: str) -> dict[int, str]:
    """Return the messages of one kind by their offset."""
    bodies = {line.offset: line.body for line in lines if line.what == what}
    assert len(bodies) == sum(line.what == what for line in lines), "an offset came twice"
    return bodies


def log_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (directory / "commitlog").iterdir()}


def ours(store: Store) -> dict[int, str]:
    bodies: dict[int, str] = {}
    while (got := store.pull(TOPIC, 0, len(bodies), max_count=500)).record_count:
        bodies |= {message.queue_offset: message.body.decode() for message in messages(got.data)}
    return bodies


def said(*command: str) -> dict[str, Any]:
    """Run a command on a directory with the sizes of CONFIG; return what it prints."""
    sizes = {
        "--file-size": CONFIG.file_size_bytes,
        "--queue-units": CONFIG.consume_queue_units_per_file,
        "--index-slots": CONFIG.index_slot_count,
        "--index-entries": CONFIG.index_entry_count,
    }
    options = [str(word) for pair in sizes.items() for word in pair]
    ran = CliRunner().invoke(main, ["store", *command, *options, "-o", "json"])
    report: dict[str, Any] = json.loads(ran.stdout)
    return {**report, "exit_code": ran.exit_code}


def test_both_stores_open_a_directory_with_inner_batches_in_turn(tmp_path: Path) -> None:
    class_path, directory = foreign.class_path(), tmp_path / "store"
    directory.mkdir()
    lines = foreign.read_and_extend_inner_batches(
        class_path, directory, CONFIG, TOPIC, BATCHES, COUNT
    )
    put, wrapped = of(lines, "put"), of(lines, "wrapped")
    assert len(wrapped) > 3 * COUNT
    before = log_of(directory)
    given = GivenSettings(
        file_size_bytes=CONFIG.file_size_bytes,
        consume_queue_units_per_file=CONFIG.consume_queue_units_per_file,
        index_slot_count=CONFIG.index_slot_count,
        index_entry_count=CONFIG.index_entry_count,
    )
    root = str(directory)
    actions = plan(root, verify(root, given=given), given=given)
    assert "cut_log" not in {action.kind.value for action in actions}, "not even before we open it"
    with Store.open(root, CONFIG) as store:
        assert store.recovery.was_adopted
        assert ours(store) == put
        assert store.inner_batch_topics() == [BATCHES]
        with pytest.raises(InnerBatchError):
            store.pull(BATCHES, 0, 0)
        (record,) = store.messages_by_key(BATCHES, "batch-7")
        assert record.properties["INNER_NUM"] == "2"
    assert log_of(directory) == before
    checked = said("verify", root)
    assert (checked["exit_code"], checked["findings"], checked["clean"]) == (0, [], True)
    assert checked["notices"] == [
        f"inner batches of RocketMQ: {COUNT + PLAIN_COUNT} records of topic {BATCHES} "
        f"(queue.type=BatchCQ) are whole, kept, and not readable here"
    ]
    repair = said("repair", root)
    assert (repair["exit_code"], repair["actions"]) == (0, [])

    with Store.open(root, CONFIG) as store:
        offset = store.put(encode_message(TOPIC, 0, b"ours")).queue_offsets[0]
    lines = foreign.read_and_extend_inner_batches(
        class_path, directory, CONFIG, TOPIC, BATCHES, COUNT
    )
    assert of(lines, "inner") == wrapped, "RocketMQ reads its batches after us"
    assert of(lines, "read") == {**put, offset: "ours"}
    put = {**of(lines, "read"), **of(lines, "put")}
    with Store.open(root, CONFIG) as store:
        assert not store.recovery.derived_rebuilt
        assert ours(store) == put
    checked = said("verify", root)
    assert (checked["exit_code"], checked["findings"]) == (0, [])

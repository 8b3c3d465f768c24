"""The state machine reads its commands out of the log: in any portions, over any restart, the same.

Real stores with real files; each test's log is one replica's.
"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.config.limits import COMMAND_SIZE_BYTES_MAX
from node.state.command_records import CommandEncoder, commands_in
from node.state.image import encode_image
from node.state.machine import StateMachine
from node.state.state import COMMAND_TOPIC, StateImage
from quorumlog.pb.state_pb2 import Command, DigestPoint, StateDigest
from store.record.message import decode_message
from store.store import Store
from tests.node.checkpoints import loaded, saved
from tests.node.commands import (
    SMALL_LIMITS,
    commit,
    delete_group,
    delete_topic,
    producer_batch,
    put_member,
    put_topic,
)
from tests.seeds import examples
from tests.store.records import record, small_config

CONFIG = small_config(container="ledger", flush="async")
ENCODER = CommandEncoder(CONFIG.store_host)

NAMES = st.sampled_from("abcdef")
COMMANDS = st.one_of(
    st.builds(put_topic, NAMES, st.integers(0, 9), st.sampled_from([2, 4, 6]), st.booleans()),
    st.builds(delete_topic, NAMES),
    st.builds(
        lambda group, rows: commit(group, *rows),
        NAMES,
        st.lists(st.tuples(NAMES, st.integers(0, 8), st.integers(0, 99)), min_size=1, max_size=4),
    ),
    st.builds(delete_group, NAMES),
    st.builds(producer_batch, st.integers(1, 5), st.integers(0, 8)),
    st.builds(put_member, st.integers(1, 4), st.sampled_from(["", "h:1", "h:2"])),
)
ENTRIES = st.lists(st.lists(COMMANDS, max_size=3), min_size=1, max_size=30)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path), CONFIG, maintain=False) as opened:
        yield opened


def append(store: Store, entries: list[list[Command]]) -> None:
    """Append one entry for each list of commands, each behind a message."""
    for commands in entries:
        store.append(record(0) + b"".join(map(ENCODER.encode, commands)))


def machine_of(store: Store, image: StateImage | None = None) -> StateMachine:
    return StateMachine(store, SMALL_LIMITS, image)


def test_a_command_record_is_an_ordinary_message() -> None:
    command = producer_batch(2**64 - 1, 2**63)
    for host in (("127.0.0.1", 8081), ("::1", 8081)):
        data = CommandEncoder(host).encode(command)
        message = decode_message(data)
        assert (message.topic, message.queue_id) == (COMMAND_TOPIC, 0)
        assert len(data) <= COMMAND_SIZE_BYTES_MAX
        assert list(commands_in(data * 2)) == [(0, command), (0, command)]


def test_only_what_was_handed_out_is_applied(store: Store) -> None:
    append(store, [[put_topic("a")], [put_topic("b")], [], [put_topic("c")]])
    machine = machine_of(store)
    machine.apply(0, 1)
    assert set(machine.state.topics) == {"a"}, "the queue holds more, but it is not its turn"
    machine.apply(1, 3)
    assert set(machine.state.topics) == {"a", "b"}
    assert machine.applied_index == 2
    machine.apply(0, 4)
    assert set(machine.state.topics) == {"a", "b", "c"}
    assert machine.state.next_command_offset == 3


def test_a_refusal_is_told_once_and_by_position(store: Store) -> None:
    append(store, [[put_topic("a"), delete_topic("x")], [delete_topic("y")]])
    machine = machine_of(store)
    machine.apply(0, 2)
    response = store.pull(COMMAND_TOPIC, 0, 0)
    positions = [position for position, _ in commands_in(response.data)]
    refusals = [machine.take_refusal(position) for position in positions]
    assert [r and r.code for r in refusals] == [None, "node.unknown_topic", "node.unknown_topic"]
    assert not any(machine.take_refusal(position) for position in positions)


def test_an_entry_or_a_command_that_is_left_out_is_a_broken_invariant(store: Store) -> None:
    append(store, [[put_topic("a")], [put_topic("b")]])
    machine = machine_of(store)
    with pytest.raises(AssertionError, match="after -1"):
        machine.apply(1, 2)
    machine.apply(0, 1)
    machine.state.next_command_offset = 5
    with pytest.raises(AssertionError, match="command 5"):
        machine.apply(1, 2)


@settings(max_examples=examples(60))
@given(ENTRIES, ENTRIES, st.data())
def test_the_state_does_not_depend_on_portions_checkpoints_snapshots_or_listening(
    before: list[list[Command]], after: list[list[Command]], data: st.DataObject
) -> None:
    """I8: one replica applies all at once, one in portions with restarts, one from a snapshot, and
    one hears of the later commands in place of pulling them from the queue."""
    with TemporaryDirectory() as root, Store.open(root, CONFIG, maintain=False) as store:
        append(store, before)
        listening = machine_of(store)
        if done := data.draw(st.integers(0, len(before))):
            listening.apply(0, done)
        store.pull("orders", 0, 0)  # Dispatches all there is.
        listening.listen(store.engine.dispatcher)
        append(store, after)
        store.pull("orders", 0, 0)
        count = len(before) + len(after)
        reference = machine_of(store)
        reference.apply(0, count)
        cuts = sorted(data.draw(st.sets(st.integers(1, count), max_size=4)) | {count})
        files = saved(Path(root))
        machine, lo = machine_of(store), 0
        for hi in cuts:
            machine.apply(lo, hi)
            if listening.applied_index + 1 < hi:
                listening.apply(listening.applied_index + 1, hi)
                assert listening.image() == machine.image()
            files.save(machine.image(), 1)
            files, image = loaded(Path(root))
            machine, lo = machine_of(store, image), data.draw(st.integers(0, hi))
            assert machine.applied_index == hi - 1
        assert machine.image() == reference.image()
        assert list(machine.state.producers) == list(reference.state.producers), "the order too"

        behind = machine_of(store)
        behind.apply(0, cuts[0])
        log_from = data.draw(st.integers(cuts[0] - 1, count - 1))
        behind.restore(encode_image(reference.image()), log_from)
        behind.apply(cuts[0], count)
        assert behind.image() == reference.image()
        assert encode_image(behind.image()) == encode_image(reference.image())


def test_a_state_that_is_older_than_its_log_is_a_broken_invariant(store: Store) -> None:
    with pytest.raises(AssertionError, match="state of -1"):
        machine_of(store).restore(encode_image(machine_of(store).image()), 0)


def test_commands_that_a_snapshot_brought_are_not_kept_while_the_log_catches_up(
    store: Store,
) -> None:
    listening = machine_of(store)
    listening.listen(store.engine.dispatcher)
    append(store, [[put_topic("a")]] * 10)
    store.pull("orders", 0, 0)  # Dispatches all there is.
    reference = machine_of(store)
    reference.apply(0, 10)
    listening.restore(encode_image(reference.image()), 0)
    append(store, [[put_topic("b")]])
    store.pull("orders", 0, 0)
    for index in range(9):
        listening.apply(index, index + 1)
        assert len(listening._ahead) == 1, "ten million entries would be a gigabyte"
    listening.apply(0, 11)
    assert set(listening.state.topics) == {"a", "b"}
    assert not listening._ahead


class Points:
    """Notes what the machine says of points, with the members of that moment."""

    def __init__(self, machine: StateMachine) -> None:
        self.machine = machine
        self.found: list[object] = []
        machine.on_digest_command = self.note

    def note(self, command: Command | None, position: int) -> None:
        if command is None:
            self.found.append("replaced")
        elif command.HasField("state_digest"):
            self.found.append((command.state_digest.position, command.state_digest.form))
        else:
            self.found.append((position, set(self.machine.image().members)))


def digest_point() -> Command:
    return Command(put_member=Command.PutMember(), digest_point=DigestPoint())


@pytest.mark.parametrize("listens", [False, True])
def test_a_point_is_passed_right_behind_its_command(store: Store, listens: bool) -> None:
    """The commands behind it come in the same entry, and are not in the state yet."""
    digest = Command(put_member=Command.PutMember(), state_digest=StateDigest(position=5, form=1))
    machine = machine_of(store)
    points = Points(machine)
    if listens:
        machine.listen(store.engine.dispatcher)
    append(store, [[put_member(1, "h:1")]])
    append(store, [[put_member(2, "h:2"), digest_point(), put_member(3, "h:3")], [digest]])
    response = store.pull(COMMAND_TOPIC, 0, 0)  # Dispatches all there is.
    machine.apply(0, 3)
    positions = [position for position, _ in commands_in(response.data)]
    assert points.found == [(positions[2], {1, 2}), (5, 1)]
    assert machine.state.next_command_offset == 5
    machine.restore(encode_image(machine.image()), 2)
    assert points.found[2:] == ["replaced"]


def test_a_machine_without_a_listener_passes_points_over(store: Store) -> None:
    append(store, [[digest_point(), put_member(1, "h:1")]])
    machine = machine_of(store)
    machine.apply(0, 1)
    assert set(machine.state.members) == {1}
    assert machine.state.refused_count == 0

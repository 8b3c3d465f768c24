"""The rules that make PySyncObj usable for the name server and the controller (fault-matrix 7).

Each test is named there. Replicas are real and talk over loopback; where a crash matters they are
processes and die by SIGKILL.
"""

import os
import pickle
import shutil
import signal
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from node.errors.nameserver import FilesDamagedError
from node.nameserver.directory.directory import Directory, put_pair_command
from node.nameserver.directory.reports import Binding
from node.nameserver.replica.journal import Journal
from node.nameserver.replica.messages import NO_OP, REGULAR
from node.nameserver.replica.plain_values import encoded_value
from node.nameserver.replica.pysyncobj import RaftTimes
from store.files.file_system import FileSystem
from tests.node.nameserver.brokers import (
    NOW_MS,
    accepted,
    elect,
    ha_directory,
    ha_master,
    ha_report,
    refused,
)
from tests.node.nameserver.replica.followers import entry, follower, replica_of
from tests.node.nameserver.replicas import (
    ReplicaProcess,
    free_addresses,
    leader_of,
    level,
    processes,
    settings_of,
)
from tests.patience import wait_for


@pytest.mark.long
def test_term_survives_restart(tmp_path: Path) -> None:
    with processes(tmp_path) as replicas:
        for _ in range(2):  # Each leader that dies makes a new term.
            leader = leader_of(replicas)
            assert leader.put(f"k{leader.status()['term']}")["is_accepted"]
            leader.kill()
            leader_of([replica for replica in replicas if replica is not leader])
            leader.start()
        leader = leader_of(replicas)
        term, keys = leader.status()["term"], leader.pair_keys()
        for replica in replicas:
            replica.kill()
        for replica in replicas:
            replica.start()
        again = leader_of(replicas)
        assert again.status()["term"] > term >= 3
        level(replicas, keys)


def test_term_and_vote_survive_a_crash(tmp_path: Path) -> None:
    """A replica that voted does not vote again in that term, for whomever."""
    addresses = sorted(free_addresses(3))
    ask = {"type": "request_vote", "last_log_index": 9, "last_log_term": 5}
    with follower(tmp_path / "r", addresses) as (_, _, candidate):
        candidate.send({**ask, "term": 7})
        assert candidate.answers(1) == [{"type": "response_vote", "term": 7}]
        shutil.copytree(tmp_path / "r", tmp_path / "crashed")  # What is durable at the answer.
    with follower(tmp_path / "crashed", [addresses[at] for at in (0, 2, 1)]) as (again, _, other):
        assert again.raftCurrentTerm == 7
        other.send({**ask, "term": 7})
        other.send({**ask, "term": 8})
        assert other.answers(1) == [{"type": "response_vote", "term": 8}]
    (tmp_path / "crashed" / "term.0").unlink()
    with (
        pytest.raises(FilesDamagedError, match="start again"),
        follower(tmp_path / "crashed", addresses),
    ):
        pass


class _Exploit:
    """Makes a directory when it is unpickled."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self._path,)


@pytest.mark.parametrize("is_member", [False, True])
def test_foreign_pickle_refused(tmp_path: Path, is_member: bool) -> None:
    trap = tmp_path / "ran"
    pickle.loads(pickle.dumps(_Exploit(str(trap))))
    trap.rmdir()  # It works where nobody minds.
    with follower(tmp_path / "r") as (replica, _, leader):
        hostile: list[Any] = [{"type": "append_entries"}, ["status"], 7, {}]
        frames = [pickle.dumps(_Exploit(str(trap))), *map(encoded_value, hostile)]
        for frame in frames:
            leader.connect() if is_member else leader.connect_unnamed()
            leader.send_raw(zlib.compress(frame))
            assert leader.is_refused()
        leader.connect()
        bomb = {"type": "request_vote", "term": 1, "last_log_index": 1, "last_log_term": 0}
        leader.send({**bomb, "unpacks to": b"\0" * 40 * 1024 * 1024})
        assert leader.is_refused()
        assert not trap.exists()
        leader.connect()
        leader.append(1, 0, [entry(2, 1)], 2, 1)
        assert leader.answers(1)[0]["success"]
        assert replica.failure is None


@pytest.mark.long
def test_no_false_success_after_heal(tmp_path: Path) -> None:
    """A leader alone takes a command; the others go on without it, past a snapshot."""
    with processes(tmp_path) as replicas:
        old = replicas[-1]  # The one that dials the others: nothing waits for it in its sockets.
        while (leader := leader_of(replicas)) is not old:
            leader.kill()
            leader_of([replica for replica in replicas if replica is not leader])
            leader.start()
        assert old.put("before")["is_accepted"]
        others = [replica for replica in replicas if replica is not old]
        for other in others:  # Paused, and then killed: they never read what is sent now.
            other.signal(signal.SIGSTOP)
        size_bytes = old.status()["journal_size_bytes"]
        call = old.begin("change", command=put_pair_command("ns", "lost", "v"), timeout_ms=15_000)
        wait_for("the command", lambda: old.status()["journal_size_bytes"] > size_bytes)
        old.signal(signal.SIGSTOP)
        for other in others:
            other.kill()
        for other in others:
            other.start()
        leader = leader_of(others)
        keys = {f"k{number}" for number in range(20)}
        for key in sorted(keys):
            assert leader.put(key)["is_accepted"]
        for other in others:
            other.ask("compact")
            path = Path(other.settings["directory"]) / "dump"
            wait_for("a dump", path.exists)
        old.signal(signal.SIGCONT)
        answer = old.end(call)
        wait_for("the keys", lambda: all(each.pair_keys() >= keys for each in replicas))
        assert (Path(old.settings["directory"]) / "dump").exists()  # It was sent a snapshot.
        truths = ["lost" in replica.pair_keys() for replica in replicas]
        if answer.get("is_accepted"):
            assert truths == [True] * 3  # Sent again under the same id, and really there.
        else:
            assert answer["outcome"] in ("unknown", "not_applied")


def test_a_snapshot_commits_nothing_of_the_log_it_replaces(tmp_path: Path) -> None:
    """What made the false success: parts of a dump carry the leader's commit index."""
    with follower(tmp_path / "r") as (replica, machine, leader):
        leader.append(1, 0, [entry(2, 1), entry(3, 1)], 1, 1)
        leader.answers(1)
        chunk = (b"half a dump", True, False)
        for serialized in (chunk, None):
            message = {"type": "append_entries", "term": 2, "commit_index": 900}
            leader.send({**message, "serialized": serialized})
        leader.append(3, 1, [], 1, 2)
        leader.answers(1)
        assert (replica.raftCommitIndex, machine.pairs) == (1, {})


def test_two_batches_survive_leader_crash(tmp_path: Path) -> None:
    """A late repetition of the first batch must not take away the second, acknowledged one."""
    first, second = [entry(2, 1), entry(3, 1)], [entry(4, 1), entry(5, 1)]
    with follower(tmp_path / "r") as (replica, machine, leader):
        leader.append(1, 0, first, 1, 1)
        leader.append(3, 1, second, 1, 1)
        answers = leader.answers(2)
        assert [(answer["success"], answer["next_node_idx"]) for answer in answers] == [
            (True, 4),
            (True, 6),
        ]
        leader.connect()
        leader.append(1, 0, first, 5, 1)
        leader.append(1, 0, [], 5, 1)
        answers = leader.answers(2)
        assert [answer["next_node_idx"] for answer in answers] == [4, 2]
        assert (replica.journal.last_index, replica.raftCommitIndex) == (5, 3)
        leader.append(5, 1, [], 5, 1)
        leader.answers(1)
        replica.tick(0.001)
        assert sorted(machine.pairs["ns"]) == ["k2", "k3", "k4", "k5"]
        # A contradiction of what is not committed is followed, one of what is committed never.
        leader.append(5, 1, [entry(6, 1)], 5, 1)
        leader.append(5, 1, [entry(6, 2)], 5, 2)
        leader.answers(2)
        assert replica.journal.term_at(6) == 2
        leader.append(1, 0, [entry(2, 3)], 2, 3)
        with pytest.raises(FilesDamagedError, match="contradicts"):
            leader.answers(1)
        replica.failure = FilesDamagedError("journal", "contradicted")


def test_poison_method_is_contained(tmp_path: Path) -> None:
    poison = [
        b"",
        b"\x80\x04garbage",
        b"[1]",
        b'{"op": "register", "id": "x"}',
        b'{"op": "elect", "id": {}, "number": 1e999}',
        pickle.dumps(_Exploit(str(tmp_path / "ran"))),
    ]
    entries: list[Any] = [(REGULAR + text, 2 + at, 1) for at, text in enumerate(poison)]
    others = [b"\x02" + b"junk", b"\x03" + b"junk", NO_OP, b"\xff"]
    entries += [(command, len(entries) + 2 + at, 1) for at, command in enumerate(others)]
    entries.append(entry(len(entries) + 2, 1))
    last = len(entries) + 1
    with follower(tmp_path / "r") as (replica, machine, leader):
        leader.append(1, 0, entries, last, 1)
        leader.answers(1)
        replica.tick(0.001)
        assert (replica.raftLastApplied, replica.failure) == (last, None)
        assert machine.pairs == {"ns": {f"k{last}": "v"}}
    assert not (tmp_path / "ran").exists()


@pytest.mark.long
def test_sigkill_in_compaction(tmp_path: Path) -> None:
    """Killed again and again while it writes dumps: no confirmed key is ever gone."""
    (settings,) = settings_of(tmp_path, 1)
    replica = ReplicaProcess(settings)
    keys: set[str] = set()
    try:
        for turn in range(4):
            replica.start()
            leader_of([replica])
            numbers = {}
            for number in range(30):
                key = f"k{turn}_{number}"
                command = put_pair_command("ns", key, "v" * 1_500)
                numbers[key] = replica.begin("change", command=command, timeout_ms=20_000)
                if number % 5 == 0:
                    replica.begin("compact")
            for key in list(numbers)[:20]:
                assert replica.end(numbers[key])["is_accepted"]
                keys.add(key)
            replica.kill()
        replica.start()
        leader_of([replica])
        wait_for("the confirmed keys", lambda: replica.pair_keys() >= keys)
    finally:
        replica.kill()


def has_applied(replica: Any, index: int) -> bool:
    """Let a replica do what it can, and say whether it has come so far."""
    replica.tick(0.01)
    return bool(replica.raftLastApplied >= index)


@pytest.mark.long
@pytest.mark.parametrize("has_new_journal", [False, True])
def test_a_compaction_that_stops_half_way_keeps_what_follows_the_dump(
    tmp_path: Path,
    has_new_journal: bool,
) -> None:
    """The dump has its name and the journal is the old one; or a new journal has no name yet."""
    own = free_addresses(1)[0]
    directory = tmp_path / "r"
    directory.mkdir()
    times = RaftTimes(election_min_s=0.5)
    replica = replica_of(Directory(), directory, own, [own], times)
    for index in range(2, 12):
        replica.journal.add(*entry(index, 0))
    # Its own no-op behind them commits all.
    wait_for("all to be applied", partial(has_applied, replica, 12))
    old = (directory / "journal").read_bytes()
    replica.forceLogCompaction()
    replica.tick(0.001)
    replica.tick(0.001)
    assert (directory / "dump").exists()
    size_bytes = replica.journal.size_bytes
    assert size_bytes < len(old)
    for index in (13, 14):
        replica.journal.add(*entry(index, 1))
    replica.sync()
    tail = (directory / "journal").read_bytes()[size_bytes:]
    replica.close()
    (directory / "journal").write_bytes(old + tail)
    if has_new_journal:
        (directory / "journal.new").write_bytes(b"half")
    machine = Directory()
    again = replica_of(machine, directory, own, [own], times)
    assert (again.journal.first_index, again.journal.last_index) == (11, 14)
    wait_for("all to be applied", partial(has_applied, again, 14))
    assert sorted(machine.pairs["ns"]) == sorted(f"k{at}" for at in [*range(2, 12), 13, 14])
    again.close()


def test_saved_commit_above_journal_starts(tmp_path: Path) -> None:
    """An unsynced tail is lost with the power; the commit index was written later than it."""
    (address,) = free_addresses(1)
    journal = Journal(FileSystem(), str(tmp_path), address, [address])
    for index in range(1, 6):
        journal.add(REGULAR + b"{}", index, 1)
    journal.setRaftCommitIndex(5)
    journal.sync()
    journal.close()
    path = tmp_path / "journal"
    path.write_bytes(path.read_bytes()[:-1])
    replica = replica_of(Directory(), tmp_path, address, [address], RaftTimes())
    try:
        assert (replica.journal.last_index, replica.raftCommitIndex) == (4, 4)
        wait_for("its own no-op", partial(has_applied, replica, 5))
        assert replica.is_leader
    finally:
        replica.close()


def test_epoch_bound_to_first_master() -> None:
    """One number, two masters: whoever was first keeps it, whatever the other one's proof."""
    directory = ha_directory()
    accepted(directory, elect(2, 2, (1, 3), "two"))
    refused(directory, elect(2, 3, (1, 3), "three"), "changed")
    refused(directory, elect(2, 3, (2, 3), "three"), "epoch_taken")
    refused(directory, elect(2, 2, (2, 3), "again"), "epoch_taken")
    refused(directory, ha_master(3, 2, "three"), "epoch_taken")
    refused(directory, ha_master(2, 2, "again"), "epoch_taken")
    accepted(directory, ha_master(2, 2, "two"))


def test_amnesia_cannot_reuse_epoch() -> None:
    """A name server that lost everything gives out numbers above all that the brokers know."""
    bindings = {7: Binding(1, "seven"), 8: Binding(2, "eight")}
    directory = Directory()
    report = ha_report(3, epoch=8, bindings=bindings, now_ms=NOW_MS)
    accepted(directory, report)
    for number in (1, 6):
        refused(directory, elect(number, 3, (8, 0)), "epoch_too_low")
    for number in (7, 8):
        refused(directory, elect(number, 3, (8, 0)), "epoch_taken")
    accepted(directory, elect(9, 3, (8, 0)))
    assert directory.groups["ha"].epochs == {**bindings, 9: Binding(3, "x")}

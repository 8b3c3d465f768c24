"""What replicas of the name server remember of each other, and what they make of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node.errors.nameserver import TwoHistoriesError
from node.nameserver.replica.journal import Journal
from node.nameserver.replica.lives import LIVES_SIZE_BYTES_MAX, ReplicaLives, told_in
from node.nameserver.replica.messages import NO_OP, is_sound
from node.nameserver.replica.plain_values import decoded_value, encoded_value
from node.nameserver.replica.pysyncobj import DirectoryReplica
from node.peers.lives_codec import LivesFormatError, encode_lives
from raft.lives import Known, ToldLife
from raft.messages import NO_INDEX, Standing
from store.files.file_system import FileSystem
from tests.node.nameserver.replica.followers import Leader, entry, follower
from tests.node.nameserver.replicas import counting, free_addresses, processes
from tests.patience import wait_for

MEMBERS = ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]
A, B, C = MEMBERS
OPENED: list[Journal] = []
NOTHING = Known(acked=NO_INDEX, committed=NO_INDEX)


class Disk:
    """The directory of one replica, and its lives one after the other."""

    def __init__(self, directory: Path, address: str, members: list[str] | None = None) -> None:
        self.directory, self.address, self.members = directory, address, members or MEMBERS
        directory.mkdir(exist_ok=True)

    def start(self, *, meet_s: float = 0.0) -> tuple[ReplicaLives, Journal]:
        fs = FileSystem()
        journal = Journal(fs, str(self.directory), self.address, self.members)
        if not len(journal):
            journal.add(NO_OP, 1, 0)
        OPENED.append(journal)
        directory = str(self.directory)
        return ReplicaLives(fs, directory, self.address, journal, meet_s=meet_s), journal


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().abandon()


def told_to(lives: ReplicaLives, sender: str, message: dict[str, Any]) -> Any:
    statement = told_in(message)
    assert statement is not None
    return lives.hear(sender, *statement)


def fill(journal: Journal, last: int, term: int) -> None:
    journal.setCurrentTerm(term, None)
    for index in range(journal.last_index + 1, last + 1):
        journal.add(b"\0{}", index, term)
    journal.sync()


def test_a_life_is_raised_at_each_start_also_when_one_file_is_lost(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "b", B)
    for life in (1, 2, 3):
        _, journal = disk.start()
        assert journal.own.life == life
        journal.abandon()
    for path in disk.directory.glob("lives.*"):
        path.write_bytes(b"junk")
    _, journal = disk.start()
    assert journal.own.life == 4
    journal.abandon()
    assert sorted(path.name for path in disk.directory.glob("*.damaged"))


def test_an_earlier_life_is_refused_and_knows_it_for_good(tmp_path: Path) -> None:
    a, _ = Disk(tmp_path / "a", A).start()
    for _ in range(2):
        b, journal = Disk(tmp_path / "b", B).start()
        told_to(a, B, b.tell())
        journal.close()
        a.on_disconnected(B)
    assert a.refused == {}, "a start after a crash is no old copy"
    copy, journal = Disk(tmp_path / "copy", B).start()
    told_to(a, B, copy.tell())
    assert "it began life 1, and was seen in life 2" in a.refused[B]
    assert not a.counts(B)
    assert told_to(copy, A, a.tell()).has_lost_memory
    assert copy.is_joining
    assert not copy.takes_part
    assert "life 1" in copy.problem
    told_to(a, B, copy.tell())
    assert a.refused == {}
    assert not a.counts(B), "it is joining"
    journal.close()
    again, journal = Disk(tmp_path / "copy", B).start()
    assert again.is_joining
    told_to(a, B, again.tell())
    assert not a.counts(B)
    again.become_full()
    journal.sync()
    told_to(a, B, again.tell())
    assert a.counts(B)
    assert (again.takes_part, again.problem) == (True, "")
    journal.abandon()
    (tmp_path / "copy" / "lives.0").unlink()
    (tmp_path / "copy" / "lives.1").unlink()
    forgetful, journal = Disk(tmp_path / "copy", B).start()
    told_to(a, B, forgetful.tell())
    assert a.counts(B), "the journal has its life as well"
    journal.abandon()


def test_a_copy_of_the_newest_life_is_found_by_what_it_promised(tmp_path: Path) -> None:
    """In a later term what was merely acked may be cut; what is committed never."""
    a, _ = Disk(tmp_path / "a", A).start()
    b, journal = Disk(tmp_path / "b", B).start()
    told_to(a, B, b.tell())
    a.on_term(B, 3)
    a.on_promise(B, 3, 5, 4)
    for last, term, lost in (
        (4, 2, "its term was 2, and it had been in 3"),
        (4, 3, "it had acked 5 in the same term"),
        (4, 4, ""),
    ):
        fill(journal, last, term)
        journal.close()
        a.on_disconnected(B)
        b, journal = Disk(tmp_path / "b", B).start()
        told_to(a, B, b.tell())
        assert lost in a.refused.get(B, "")
        assert (B in a.refused) is bool(lost)
    a.on_promise(B, 4, 5, 5)
    journal.abandon()
    a.on_disconnected(B)
    told_to(a, B, Disk(tmp_path / "b", B).start()[0].tell())
    assert "it had acked 5, which is committed" in a.refused[B]


def test_known_lives_outlive_a_restart_and_are_passed_on(tmp_path: Path) -> None:
    a, journal = Disk(tmp_path / "a", A).start()
    b, _ = Disk(tmp_path / "b", B).start()
    told_to(a, B, b.tell())
    a.on_promise(B, 1, 7, 7)
    a.save()
    journal.close()
    a, _ = Disk(tmp_path / "a", A).start()
    copy, _ = Disk(tmp_path / "empty", B).start()
    c, _ = Disk(tmp_path / "c", C).start()
    told_to(c, B, copy.tell())
    assert c.counts(B), "it never met the other one"
    learned = told_to(c, A, a.tell())
    assert learned.cut == (B,), "let it say again how it is"
    c.on_disconnected(B)
    told_to(c, B, copy.tell())
    assert "a second time" in c.refused[B]
    assert told_to(copy, C, c.tell()).has_lost_memory


def test_a_replica_of_no_known_life_counts_and_one_of_other_settings_is_not_compared(
    tmp_path: Path,
) -> None:
    a, _ = Disk(tmp_path / "a", A).start()
    b, _ = Disk(tmp_path / "b", B).start()
    other, _ = Disk(tmp_path / "o", B, [A, B, "127.0.0.1:4"]).start()
    told_to(a, B, other.tell())
    assert a.refused == {}
    assert a.counts(B)
    told_to(a, B, b.tell())
    assert a.counts(B)
    a.on_disconnected(B)
    assert not a.counts(B), "it was seen in a life"


def test_a_replica_takes_part_once_it_had_contact_with_the_others(tmp_path: Path) -> None:
    lives_by_node = {one: Disk(tmp_path / one, one).start(meet_s=60.0)[0] for one in MEMBERS}
    assert not lives_by_node[A].takes_part
    told_to(lives_by_node[A], B, lives_by_node[B].tell())
    assert not lives_by_node[A].takes_part
    told_to(lives_by_node[A], C, lives_by_node[C].tell())
    assert lives_by_node[A].takes_part
    lives_by_node[A].on_disconnected(B)
    assert lives_by_node[A].takes_part, "only its own loss of memory ends it"
    alone, _ = Disk(tmp_path / "alone", A, [A]).start(meet_s=60.0)
    assert alone.takes_part


def test_of_two_replicas_neither_is_refused(tmp_path: Path) -> None:
    """Both have what is committed; nobody else could bring one back."""
    members = [A, B]
    a, _ = Disk(tmp_path / "a", A, members).start()
    for _ in range(2):
        b, journal = Disk(tmp_path / "b", B, members).start()
        told_to(a, B, b.tell())
        journal.abandon()
    empty, _ = Disk(tmp_path / "empty", B, members).start()
    told_to(a, B, empty.tell())
    assert a.counts(B)
    assert not told_to(empty, A, a.tell()).has_lost_memory


def test_lives_have_the_shape_of_a_vote_in_no_term_and_malformed_ones_are_refused(
    tmp_path: Path,
) -> None:
    """With as many members as there may be they have room in any message."""
    members = [f"127.0.0.1:{port}" for port in range(1, 10)]
    a, *others = [Disk(tmp_path / str(at), m, members).start()[0] for at, m in enumerate(members)]
    for other, address in zip(others, members[1:], strict=True):
        told_to(a, address, other.tell())
    message = a.tell()
    assert is_sound(message)
    assert (message["type"], message["term"]) == ("response_vote", 0)
    assert decoded_value(encoded_value((bytes(32), message)), 64)[1] == message
    assert len(message["lives"]) < LIVES_SIZE_BYTES_MAX // 8
    no_life = ToldLife(0, 1, 0, 0, 0, 0, Standing.FULL, 0, 0)
    stranger = encode_lives(no_life._replace(life=1), {10: NOTHING})
    for lives in (b"junk", encode_lives(no_life, {}), stranger):
        with pytest.raises(LivesFormatError):
            a.hear(members[1], members, lives)
    for name, wrong in (("lives", "x"), ("lives", b"x" * 70_000), ("members", "x"), ("term", 1)):
        assert told_in({**message, name: wrong}) is None
    assert told_in({**message, "members": [1]}) is None


# --- Over a real socket ---


class Peer:
    """What the played leader of a real replica tells."""

    def __init__(self, replica: DirectoryReplica, leader: Leader, number: int = 2) -> None:
        self.replica, self.leader, self.number = replica, leader, number

    def tell(self, life: int, known: dict[int, Known] | None = None) -> None:
        own_life = ToldLife(life, 70 + life, 0, 1, 0, 1, Standing.FULL, 0, 0)
        own, *others = self.replica.journal.members
        message = {"type": "response_vote", "term": 0, "lives": encode_lives(own_life, known or {})}
        between = {"from": others[self.number - 2], "to": own}
        self.leader.send({**message, **between, "members": [own, *others]})

    def ask_vote(self, term: int) -> None:
        index = self.replica.journal.last_index
        request = {"type": "request_vote", "term": term, "last_log_index": index + 9}
        self.leader.send({**request, "last_log_term": term})

    def tick_until(self, found: Any) -> None:
        def is_found() -> bool:
            self.replica.tick(0.001)
            return bool(found())

        wait_for("what a tick brings", is_found)


def test_an_old_copy_votes_again_after_an_entry_of_its_own(
    tmp_path: Path,
) -> None:
    with follower(tmp_path / "r") as (replica, _, leader):
        peer = Peer(replica, leader)
        leader.append(1, 0, [entry(2, 1)], 2, 1)
        assert leader.answers(1)[0]["success"]
        peer.tell(4, {1: Known(9, 5, 0, 1)})
        peer.tick_until(lambda: replica.lives.is_joining)
        assert not replica.hasQuorum
        peer.ask_vote(2)
        leader.append(2, 1, [entry(3, 2)], 2, 2)
        answers = leader.answers(2)
        assert [one["type"] for one in answers] == ["next_node_idx", "apply_command"], "no vote"
        marker = answers[1]["command"]
        leader.append(3, 2, [(marker, 4, 2)], 2, 2)
        leader.answers(1)
        assert replica.lives.is_joining, "it is not committed"
        leader.append(4, 2, [], 4, 2)
        peer.tick_until(lambda: not replica.lives.is_joining)
        peer.ask_vote(3)
        assert {"type": "response_vote", "term": 3} in leader.answers(2)


def test_an_old_copy_leads_nobody_and_is_not_counted(tmp_path: Path) -> None:
    with follower(tmp_path / "r") as (replica, _, leader):
        peer = Peer(replica, leader)
        peer.tell(4)
        peer.tick_until(lambda: replica.lives.has_told(replica.journal.members[1]))
        leader.connect()
        peer.tell(3)
        peer.tick_until(lambda: replica.lives.refused)
        leader.append(1, 0, [entry(2, 1)], 2, 1)
        peer.ask_vote(7)
        assert leader.listen(50) == []
        assert replica.journal.last_index == 1
        assert replica.raftCurrentTerm == 0
        assert leader.told, "it hears why"


def test_a_contradiction_of_what_is_committed_is_refused_by_name(tmp_path: Path) -> None:
    """And so it is after a crash: the commit index is in a file to within a second."""
    addresses = sorted(free_addresses(3))
    with follower(tmp_path / "r", addresses) as (replica, _, leader):
        leader.append(1, 0, [entry(2, 1), entry(3, 1)], 3, 1)
        leader.answers(1)
        Peer(replica, leader).tick_until(lambda: replica.raftLastApplied == 3)
        replica.lives.save()
        replica.journal.abandon()  # A crash: the term file does not say it yet.
    with follower(tmp_path / "r", addresses) as (replica, _, leader):
        leader.append(2, 1, [entry(3, 2)], 2, 2)
        with pytest.raises(TwoHistoriesError, match="contradicts entry 3, and 3 is committed"):
            leader.answers(1)
        replica.failure = AssertionError()
    assert b"k3" in (tmp_path / "r" / "journal").read_bytes(), "nothing was cut"


def test_lives_told_to_another_replica_are_refused(tmp_path: Path) -> None:
    """The password proves a member, and not which: who sits between two can lead the words of one
    back to it, or to a third."""
    with follower(tmp_path / "r") as (replica, _, leader):
        own, other, third = replica.journal.members
        leader.listen(5)
        said = leader.told[0]
        assert (said["from"], said["to"]) == (own, other)
        for sender, receiver in ((own, other), (other, third), (third, own), (other, [own])):
            leader.send({**said, "from": sender, "to": receiver})
            assert leader.is_refused()
            assert not replica.lives.has_told(other)
            leader.connect()
        leader.send({**said, "from": other, "to": own})
        leader.listen(5)
        assert replica.lives.has_told(other)
        leader.connect()
        leader.send({key: value for key, value in said.items() if key not in ("from", "to")})
        assert leader.is_refused()


@pytest.mark.long
def test_without_the_password_nobody_is_made_an_old_copy(tmp_path: Path) -> None:
    """A stranger says in the clear that the other replica had many more lives."""
    with processes(tmp_path, "0123456789abcdef0123456789abcdef") as replicas:
        replica = replicas[0]
        for _ in range(5):
            lives = encode_lives(ToldLife(99, 1, 0, 1, 9, 9, Standing.FULL, 0, 0), {})
            assert replica.hangs_up_on(lives)
        replicas[1].kill()
        replicas[1].start()
        counting(replicas)
        assert [one.status()["old_copy_count"] for one in replicas] == [0, 0, 0]

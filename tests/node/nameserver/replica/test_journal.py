"""The journal, the dump and the messages: what is durable, found damaged, and refused."""

from pathlib import Path
from typing import Any

import pytest

from node.errors.nameserver import FilesDamagedError
from node.nameserver.replica import messages
from node.nameserver.replica.dump import Dump, index_and_term, read_dump, write_dump
from node.nameserver.replica.journal import COMMIT_SAVE_SECONDS, Journal
from node.nameserver.replica.messages import REGULAR
from store.errors import SyncFailedError
from store.files.file_system import FileSystem

ADDRESS = "127.0.0.1:9876"


def _journal(directory: Path) -> Journal:
    return Journal(FileSystem(), str(directory), ADDRESS, [ADDRESS])


def _entries(journal: Journal) -> list[tuple[int, int]]:
    entries = journal[:]
    assert isinstance(entries, list)
    return [(index, term) for _, index, term in entries]


def _filled(directory: Path, count: int = 9) -> Path:
    journal = _journal(directory)
    for index in range(1, count + 1):
        journal.add(REGULAR + b"command %d" % index, index, 1)
    journal.sync()
    journal.close()
    return directory / "journal"


def test_changes_are_durable_after_a_sync_and_not_before(tmp_path: Path) -> None:
    journal = _journal(tmp_path)
    for index in range(1, 6):
        journal.add(b"x" * index, index, 1)
    journal.setCurrentTerm(3, "127.0.0.1:1")
    journal.sync()
    journal.add(b"y", 6, 3)
    journal.setCurrentTerm(4, None)
    journal.abandon()
    again = _journal(tmp_path)
    assert _entries(again) == [(index, 1) for index in range(1, 6)]
    assert (again.getCurrentTerm(), again.getVotedForNodeId()) == (3, "127.0.0.1:1")
    again.deleteEntriesFrom(3)
    again.deleteEntriesTo(1)
    again.add(b"z", 4, 3)
    again.setRaftCommitIndex(3)
    for _ in range(COMMIT_SAVE_SECONDS):
        again.onOneSecondTimer()
    again.sync()
    again.abandon()
    last = _journal(tmp_path)
    assert _entries(last) == [(2, 1), (3, 1), (4, 3)]
    assert (last.first_index, last.last_index, last.term_at(4), last.term_at(1)) == (2, 4, 3, None)
    assert last.getRaftCommitIndex() == 3
    last.abandon()


def test_committed_journal_entries_are_never_removed(tmp_path: Path) -> None:
    journal = _journal(tmp_path)
    for index in range(1, 6):
        journal.add(b"x", index, 1)
    journal.setRaftCommitIndex(3)
    with journal.keeping_tail():
        journal.deleteEntriesFrom(0)
    assert journal.last_index == 5
    with pytest.raises(FilesDamagedError, match="committed"):
        journal.deleteEntriesFrom(2)
    journal.deleteEntriesFrom(3)
    assert journal.last_index == 3
    with pytest.raises(FilesDamagedError, match="would follow"):
        journal.add(b"x", 9, 1)


@pytest.mark.parametrize("lost", [1, 20, 33, 40])
def test_a_torn_tail_is_cut(tmp_path: Path, lost: int) -> None:
    path = _filled(tmp_path)
    path.write_bytes(path.read_bytes()[:-lost])
    journal = _journal(tmp_path)
    assert journal.last_index == (8 if lost < 35 else 7)
    journal.sync()
    journal.abandon()
    again = _journal(tmp_path)
    assert again.last_index == journal.last_index
    again.abandon()


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    """In the last record it looks like a torn tail; anywhere else the replica does not start."""
    path = _filled(tmp_path, 3)
    content = path.read_bytes()
    last_start = content.rindex(b"command 3") - 25
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        if at < last_start:
            with pytest.raises(FilesDamagedError):
                _journal(tmp_path)
        else:
            journal = _journal(tmp_path)
            assert journal.last_index == 2
            journal.abandon()


@pytest.mark.parametrize("name", ["term.0", "term.1"])
def test_without_its_term_a_journal_does_not_start(tmp_path: Path, name: str) -> None:
    _filled(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    with pytest.raises(FilesDamagedError):
        _journal(tmp_path)


def test_a_sync_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sync(_: FileSystem, _fd: int, path: str) -> None:
        raise SyncFailedError(path, 5)

    journal = _journal(tmp_path)
    journal.add(b"x", 1, 1)
    journal.sync()
    journal.add(b"x", 2, 1)
    monkeypatch.setattr(FileSystem, "sync", sync)
    with pytest.raises(SyncFailedError):
        journal.sync()
    journal.abandon()


def test_a_dump_is_checked_whole(tmp_path: Path) -> None:
    path, fs = tmp_path / "dump", FileSystem()
    dump = Dump((b"\0{}", 8, 3), (b"\1", 7, 2), {"pairs": {"ns": {"k": "é"}}})
    write_dump(fs, str(path), dump)
    assert read_dump(fs, str(path)) == dump
    content = path.read_bytes()
    assert index_and_term(content[:60]) == (8, 3)
    assert index_and_term(content[:10]) is None
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        with pytest.raises(FilesDamagedError):
            read_dump(fs, str(path))


_APPEND = {"type": "append_entries", "term": 3, "commit_index": 9, "prevLogIdx": 4}


@pytest.mark.parametrize(
    ("entries", "verified", "rest", "commit", "keeps_tail"),
    [
        ([], 4, 0, 4, True),
        ([5], 5, 0, 5, True),
        ([5, 6], 6, 0, 6, True),
        ([5, 6, 7], 6, 1, 7, False),
    ],
)
def test_an_append_is_reduced_to_what_is_new(
    tmp_path: Path, entries: list[int], verified: int, rest: int, commit: int, keeps_tail: bool
) -> None:
    journal = _journal(tmp_path)
    for index in range(1, 7):
        journal.add(b"x", index, 1)
    sent: dict[str, Any] = {**_APPEND, "prevLogTerm": 1}
    sent["entries"] = [(b"x", index, 1) for index in entries]
    message, keeps = messages.verified_append(sent, journal)
    assert (message["prevLogIdx"], len(message["entries"])) == (verified, rest)
    assert (message["commit_index"], keeps) == (commit, keeps_tail)
    conflict = {**sent, "entries": [(b"x", 5, 2)]}
    assert messages.verified_append(conflict, journal)[0]["entries"] == [(b"x", 5, 2)]
    unknown = {**sent, "prevLogTerm": 2}
    assert messages.verified_append(unknown, journal) == (unknown, False)


def test_an_answer_counts_in_its_term_only() -> None:
    answer = {"type": "next_node_idx", "next_node_idx": 99, "reset": True, "term": 3}
    assert messages.current_answer(answer, 4, 10) is None
    assert messages.current_answer(answer, 3, 10) == {**answer, "next_node_idx": 11}


_SOUND: list[dict[str, Any]] = [
    {**_APPEND, "prevLogTerm": 1, "entries": [[b"x", 5, 1], [b"y", 6, 2]]},
    {"type": "append_entries", "term": 1, "commit_index": 1, "serialized": [b"x", True, False]},
    {"type": "append_entries", "term": 1, "commit_index": 1, "serialized": None},
    {"type": "request_vote", "term": 1, "last_log_index": 1, "last_log_term": 1},
    {"type": "response_vote", "term": 1},
    {"type": "apply_command", "command": b"\0{}", "request_id": 1},
    {"type": "apply_command_response", "request_id": 1, "log_idx": 4, "log_term": 1},
    {"type": "apply_command_response", "request_id": 1, "error": 4},
    {"type": "next_node_idx", "next_node_idx": 1, "reset": True, "success": False, "term": 1},
]


@pytest.mark.parametrize("message", _SOUND)
def test_no_field_may_be_of_another_kind(message: dict[str, Any]) -> None:
    assert messages.is_sound(message)
    for name in message:
        for wrong in (-1, 2**63, "1", 1.5, [1], {}, (b"x", 1), object()):
            assert not messages.is_sound({**message, name: wrong}), (name, wrong)


def test_commands_of_a_member_are_bounded() -> None:
    for size_bytes, is_sound in ((1024, True), (0, False), (2 * 1024 * 1024 + 2, False)):
        message = {"type": "apply_command", "command": b"x" * size_bytes}
        assert messages.is_sound(message) is is_sound

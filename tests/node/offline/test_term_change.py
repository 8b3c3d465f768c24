"""Lowering terms together: which statements lead where, and which directories are refused."""

from __future__ import annotations

import itertools
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.config.load import load
from node.config.settings import Settings
from node.errors.common import NodeError
from node.offline.restore import RestoreError
from node.offline.term_change import Lowered, lower_directory, seal_directory, unseal_directory
from node.offline.term_seal import (
    SEAL_FILE,
    SealedError,
    TermEndError,
    epoch_warnings,
    read_seal,
    refuse_epoch_end,
    refuse_if_sealed,
    refuse_term_end,
    term_warnings,
)
from node.offline.term_statement import Statement, TermChangeRefusedError, target_term
from node.replication.ha.core.types import EPOCH_END, EPOCH_NOTABLE
from node.replication.lives_file import FILE_NAMES, LivesFile, LivesRecord
from node.replication.raft.storage.log import LedgerLog
from raft.ceiling import TERM_END, TERM_NOTABLE
from raft.lives import Known, ToldLife, memory_lost
from raft.messages import Standing
from raft.ready import EntryKind, HardState
from store.errors import LockedError
from store.files.file_system import FileSystem
from store.fsck.check import verify

ABSURD = (1 << 63) - 1
PEERS = ",".join(f"{node}=h{node}:1/h{node}:2" for node in (1, 2, 3))


def statement(node: int, **changes: Any) -> Statement:
    usual = Statement(f"seal{node}", "raft", "c", "g0", node, ABSURD, 2, 10, 7, (1, 2, 3))
    return replace(usual, **changes)


def three(**of_third: Any) -> list[Statement]:
    return [statement(1), statement(2, last_term=9), statement(3, **of_third)]


def refusal(statements: list[Statement]) -> str:
    with pytest.raises(TermChangeRefusedError) as caught:
        target_term(statements, end=TERM_END)
    assert caught.value.do
    return str(caught.value)


# The decision.


def test_all_go_one_above_what_any_log_holds_in_whatever_order() -> None:
    for order in itertools.permutations(three()):
        assert target_term(order, end=TERM_END) == 10
    assert target_term(three(last_term=50, term=60), end=TERM_END) == 51
    assert target_term([*three(), statement(4, members=())], end=TERM_END) == 10


def test_a_member_that_is_missing_is_named() -> None:
    assert "members [3]" in refusal(three()[:2])
    assert "members [1, 2]" in refusal([statement(3)])
    learner = three(members=(1, 2, 3, 8))
    assert "members [8]" in refusal(learner), "a member that one log alone names counts"


def test_statements_of_two_groups_or_of_two_times_are_refused() -> None:
    assert "of group 'g1'" in refusal(three(group="g1"))
    assert "of cluster_id 'other'" in refusal(three(cluster_id="other"))
    assert "of kind 'ha'" in refusal(three(kind="ha"))
    assert "two statements of node 3 that differ" in refusal(
        [*three(), statement(3, seal="another")]
    )
    assert target_term([*three(), statement(3)], end=TERM_END) == 10


def test_a_log_that_reached_the_end_has_no_way_back_here() -> None:
    text = refusal(three(last_term=TERM_END - 2))
    assert "the log of node 3 holds" in text
    assert "export the messages" in text
    with pytest.raises(TermChangeRefusedError):
        target_term([statement(1, members=(1,), last_term=EPOCH_END - 2)], end=EPOCH_END)


def test_terms_that_elections_explain_are_left_alone() -> None:
    usual = [statement(node, term=10, last_term=9) for node in (1, 2, 3)]
    assert "nothing to do" in refusal(usual)
    usual[1] = statement(2, term=11, last_term=9)
    assert target_term(usual, end=TERM_END) == 10


# Statements as files.


def test_a_statement_is_read_as_it_was_written() -> None:
    found = statement(2)
    assert Statement.from_json("f", found.to_json().encode()) == found


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ('"last_term": 7', '"last_term": 8', "was changed"),
        ('"last_term": 7', '"last_term": true', "is no statement"),
        ('"last_term": 7', '"last_term": "7"', "is no statement"),
        ('"last_term": 7,', "", "is no statement"),
        ('"vote": 2', '"vote": 2, "more": 1', "is no statement"),
        ('"crc"', '"crd"', "is no statement"),
        ("{", "[", "is no statement"),
    ],
)
def test_a_changed_statement_is_refused_by_name(old: str, new: str, what: str) -> None:
    text = statement(2).to_json()
    assert old in text
    with pytest.raises(TermChangeRefusedError, match=f"node-2.json {what}"):
        Statement.from_json("node-2.json", text.replace(old, new).encode())


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe", b"[]", b"3", b"[" * 60_000, b" " * 70_000, b'{"statement": []}']
)
def test_anything_else_is_no_statement(data: bytes) -> None:
    with pytest.raises(TermChangeRefusedError, match="f "):
        Statement.from_json("f", data)


# Directories.


def settings_of(tmp_path: Path, node: int, **flags: Any) -> Settings:
    given = {
        "node_id": str(node),
        "directory": str(tmp_path / f"data{node}"),
        "cluster_id": "c",
        "peers": PEERS,
        "file_size_bytes": "1MiB",
        "batch_size_bytes_max": "64KiB",
        "warm_up": "false",
    }
    return load(None, given | flags, {}).settings


def make(tmp_path: Path, node: int, *, term: int = ABSURD, last_term: int = 3) -> Settings:
    """A stopped node of three, whose log ends in `last_term`."""
    settings = settings_of(tmp_path, node)
    with opened(settings) as log:
        log.found((1, 2, 3))
        log.start_at(-1)
        log.append(0, last_term, EntryKind.NO_OP, None)
        log.save_hard_state(HardState(term, 2))
    return settings


def opened(settings: Settings) -> LedgerLog:
    root, config = str(settings.directory), settings.store_config()
    return LedgerLog.open(root, config, cluster_id="c", node_id=settings.node_id)


def hard_state(settings: Settings) -> HardState:
    with opened(settings) as log:
        return log.hard_state


def test_three_nodes_are_sealed_and_lowered_and_a_broken_run_is_repeated(tmp_path: Path) -> None:
    nodes = [make(tmp_path, node, last_term=node) for node in (1, 2, 3)]
    statements = [seal_directory(one) for one in nodes]
    assert [one.last_term for one in statements] == [1, 2, 3]
    assert [seal_directory(one) for one in nodes] == statements
    for one in nodes:
        with pytest.raises(SealedError, match="qlog term lower"):
            refuse_if_sealed(one.directory)
        assert not [found for found in verify(str(one.directory)) if SEAL_FILE in found.path]
    for one in nodes:
        lowered = lower_directory(one, statements)
        assert lowered == Lowered(str(one.directory), one.node_id, ABSURD, 4, False)
        assert hard_state(one) == HardState(4, 0)
        refuse_if_sealed(one.directory)
    # A crash between the two writes: the term is low already, and the seal is still there.
    (nodes[0].directory / SEAL_FILE).write_text(json.dumps({"seal": statements[0].seal}))
    assert lower_directory(nodes[0], statements).is_repeated
    assert hard_state(nodes[0]) == HardState(4, 0)
    refuse_if_sealed(nodes[0].directory)


@pytest.mark.parametrize("is_repeated", [False, True])
def test_known_terms_of_the_others_are_lowered_with_them(tmp_path: Path, is_repeated: bool) -> None:
    """Else each would take each for an old copy: it had been seen in a term that it gave up."""
    nodes = [make(tmp_path, node, last_term=node) for node in (1, 2, 3)]
    first, root = nodes[0], str(nodes[0].directory)
    remembered = LivesRecord(
        "c",
        1,
        life=7,
        nonces=(5, 4),
        committed=0,
        known={
            2: Known(3, 9, 0, ABSURD, 2, 50, 40),  # It saw the forged term.
            3: Known(4, 8, 0, 4, 4, 60, 40),  # A leader of term 4 whose entries nobody has now.
        },
        apart={2: (Known(2, 7, 0, ABSURD, 2, 50, 40),)},
    )
    file = LivesFile(FileSystem(), root)
    file.load("c", 1)
    file.save(remembered)
    statements = [seal_directory(one) for one in nodes]
    if is_repeated:
        lower_directory(first, statements)
        (first.directory / SEAL_FILE).write_text(json.dumps({"seal": statements[0].seal}))
    lower_directory(first, statements)
    found = LivesFile(FileSystem(), root).load("c", 1)
    assert replace(found, known={}, apart={}) == replace(remembered, known={}, apart={})
    assert found.apart == {2: (Known(2, 7, 0, 4, 2, 50, 40),)}
    assert found.known == {2: Known(3, 9, 0, 4, 2, 50, 40), 3: Known(4, 8, 0, 4, 0, -1, 40)}
    second = ToldLife(4, 10, 4, 50, 4, 50, Standing.FULL, 0, 0, (9,))
    assert memory_lost(found.known[2], second) == ""
    assert "its log ended at 39" in memory_lost(
        found.known[2], second._replace(start_last_index=39)
    )


def test_a_node_without_known_lives_is_lowered_without_a_file(tmp_path: Path) -> None:
    nodes = [make(tmp_path, node) for node in (1, 2, 3)]
    statements = [seal_directory(one) for one in nodes]
    lower_directory(nodes[0], statements)
    assert not [name for name in FILE_NAMES if (nodes[0].directory / name).exists()]


def test_a_directory_that_is_not_sealed_or_went_on_is_refused(tmp_path: Path) -> None:
    nodes = [make(tmp_path, node) for node in (1, 2, 3)]
    statements = [seal_directory(one) for one in nodes]
    first = nodes[0]
    assert unseal_directory(first)
    assert not unseal_directory(first)
    with pytest.raises(TermChangeRefusedError, match="is not sealed"):
        lower_directory(first, statements)
    again = seal_directory(first)
    with pytest.raises(TermChangeRefusedError, match="of another seal"):
        lower_directory(first, statements)
    statements[0] = again
    with opened(first) as log:  # As somebody would who removed the seal by hand.
        log.save_hard_state(HardState(ABSURD, 3))
    with pytest.raises(TermChangeRefusedError, match="is not what its statement says"):
        lower_directory(first, statements)
    assert hard_state(first) == HardState(ABSURD, 3)
    assert read_seal(first.directory) == again.seal


def test_a_single_node_of_several_is_never_lowered(tmp_path: Path) -> None:
    first = make(tmp_path, 1)
    with pytest.raises(TermChangeRefusedError, match=r"members \[2, 3\]"):
        lower_directory(first, [seal_directory(first)])
    assert hard_state(first) == HardState(ABSURD, 2)


def test_a_running_node_is_neither_sealed_nor_lowered_nor_unsealed(tmp_path: Path) -> None:
    nodes = [make(tmp_path, node) for node in (1, 2, 3)]
    statements = [seal_directory(one) for one in nodes]
    fresh = make(tmp_path / "fresh", 1)
    with opened(fresh), pytest.raises(LockedError):
        seal_directory(fresh)
    assert read_seal(fresh.directory) is None, "nothing was sealed"
    with opened(nodes[0]):
        for act in (
            lambda: seal_directory(nodes[0]),
            lambda: unseal_directory(nodes[0]),
            lambda: lower_directory(nodes[0], statements),
        ):
            with pytest.raises(LockedError):
                act()
    assert hard_state(nodes[0]).term == ABSURD


def test_a_directory_that_belongs_to_nobody_is_left_alone(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, 1)
    with pytest.raises(TermChangeRefusedError, match="there is no directory"):
        seal_directory(settings)
    assert not settings.directory.exists()
    settings.directory.mkdir()
    with pytest.raises(TermChangeRefusedError, match="no group yet"):
        seal_directory(settings)
    assert read_seal(settings.directory) is None


def test_a_seal_that_cannot_be_read_is_one_all_the_same(tmp_path: Path) -> None:
    nodes = [make(tmp_path, node) for node in (1, 2, 3)]
    statements = [seal_directory(one) for one in nodes]
    (nodes[0].directory / SEAL_FILE).write_bytes(b"\x00")
    with pytest.raises(SealedError):
        refuse_if_sealed(nodes[0].directory)
    with pytest.raises(TermChangeRefusedError, match="of another seal"):
        lower_directory(nodes[0], statements)
    statements[0] = seal_directory(nodes[0])
    assert statements[0].seal == read_seal(nodes[0].directory) != ""
    assert lower_directory(nodes[0], statements).term == 4


# What a start refuses.


@pytest.mark.parametrize("term", [TERM_END - 1, TERM_END, ABSURD])
def test_a_term_at_the_end_names_the_way_back(term: int) -> None:
    with pytest.raises(TermEndError, match="'qlog term'") as caught:
        refuse_term_end("data", term)
    assert str(term) in str(caught.value)
    refuse_term_end("data", TERM_END - 2)
    with pytest.raises(TermEndError, match="epoch"):
        refuse_epoch_end("data", EPOCH_END - 1)
    refuse_epoch_end("data", EPOCH_END - 2)


def test_an_absurd_term_that_works_is_told() -> None:
    assert term_warnings(TERM_NOTABLE - 1) == ()
    (told,) = term_warnings(TERM_NOTABLE)
    assert "no elections explain term 2147483648" in told
    assert epoch_warnings(EPOCH_NOTABLE - 1) == ()
    assert "epoch 32768" in epoch_warnings(EPOCH_NOTABLE)[0]


def test_errors_pickle() -> None:
    errors: list[NodeError] = [
        SealedError("d"),
        TermEndError("d", "term", 3),
        TermChangeRefusedError("what", "do"),
        RestoreError("a", "b", "c"),
    ]
    for error in errors:
        assert str(pickle.loads(pickle.dumps(error))) == str(error)

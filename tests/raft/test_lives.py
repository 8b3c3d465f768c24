"""What others remember of a node, and which disks are found to be old copies by it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from raft.lives import APART_MAX, UNKNOWN, Known, Lives, ToldLife, learned, memory_lost, merged
from raft.messages import NO_INDEX, Standing
from tests.raft.builders import append_reply
from tests.raft.cluster import ELECTION_TICKS, Cluster

TOLD = ToldLife(
    life=4,
    nonce=44,
    start_term=3,
    start_last_index=100,
    term=3,
    last_index=120,
    standing=Standing.FULL,
    incarnation=0,
    joined=0,
    past=(33, 22),
)
"""A node in its fourth life, which knows of two before."""

BEFORE = Known(life=3, nonce=33, term=3, acked_term=3, acked=100, committed=90)
"""What is remembered of the life before."""


def test_a_node_that_crashed_and_came_back_is_believed() -> None:
    assert memory_lost(BEFORE, TOLD) == ""
    assert learned(BEFORE, TOLD) == BEFORE._replace(life=4, nonce=44)


@pytest.mark.parametrize(
    ("known", "why"),
    [
        ({"life": 5, "nonce": 55}, "it began life 4, and was seen in life 5"),
        ({"life": 4, "nonce": 45}, "it began life 4 a second time"),
        ({"nonce": 34}, "the life 3 in which it was seen was none of its own"),
        ({"life": 2, "nonce": 33}, "the life 2 in which it was seen was none of its own"),
        ({"incarnation": 2}, "it is of incarnation 0, and was of 2"),
        ({"term": 4}, "its term was 3, and it had been in 4"),
        ({"acked": 101}, "its log ended at 100, and it had acked 101 in the same term"),
        ({"committed": 101, "acked_term": 2}, "it had acked 101, which is committed"),
    ],
)
def test_an_old_copy_is_found_by(known: dict[str, int], why: str) -> None:
    assert why in memory_lost(BEFORE._replace(**known), TOLD)


@pytest.mark.parametrize(
    ("known", "told"),
    [
        (UNKNOWN, {}),  # Nobody knows anything.
        (BEFORE._replace(life=1, nonce=7), {}),  # So long ago that it does not know any more.
        (BEFORE._replace(life=0, nonce=0), {}),  # It was part of no cluster yet.
        (BEFORE._replace(life=9), {"life": 0}),  # It is part of no cluster yet.
        (BEFORE, {"start_term": 4, "start_last_index": 95}),  # A later leader cut its log.
        (BEFORE._replace(acked_term=2, acked=500), {}),  # The same, and it was seen since.
        # It lost power, and says that acks may be missing.
        (BEFORE, {"start_last_index": 5, "incarnation": 1, "standing": Standing.RECOVERING}),
        # It has said since that it is without memory: a new disk, or a copy that was told so.
        (BEFORE._replace(life=9), {"joined": 1, "incarnation": 1, "start_last_index": 0}),
    ],
)
def test_ordinary_lives_are_no_old_copies(known: Known, told: dict[str, Any]) -> None:
    assert memory_lost(known, TOLD._replace(**told)) == ""


def test_a_loss_of_power_hides_no_old_copy() -> None:
    """Raising the incarnation is not enough: the copy may have forgotten a vote."""
    copy = TOLD._replace(standing=Standing.RECOVERING, incarnation=1)
    assert "began life" in memory_lost(BEFORE._replace(life=4, nonce=45), copy)
    assert "its term" in memory_lost(BEFORE._replace(term=4), copy)


def test_memory_of_a_machine_that_was_put_back_within_one_life() -> None:
    """The process goes on, so life and nonce are those that are known."""
    view = learned(BEFORE, TOLD)._replace(acked=120)

    assert memory_lost(view, TOLD) == ""
    assert "had acked 120" in memory_lost(view, TOLD._replace(last_index=119))
    assert memory_lost(view, TOLD._replace(last_index=119, term=4)) == ""
    assert "had been in 3" in memory_lost(view, TOLD._replace(term=2))


def test_a_node_that_began_without_memory_is_known_anew() -> None:
    joined = TOLD._replace(life=1, nonce=1, joined=7, incarnation=7, term=0, past=())
    assert learned(BEFORE, joined) == Known(1, 1, 7, 0)
    again = joined._replace(life=2, nonce=2, past=(1,))
    assert memory_lost(learned(BEFORE, joined), again) == ""
    assert "incarnation" in memory_lost(learned(BEFORE, joined), TOLD), "the old disk is put back"


def test_acks_before_a_loss_of_power_are_not_expected_any_more() -> None:
    recovering = TOLD._replace(start_last_index=5, incarnation=1, standing=Standing.RECOVERING)
    view = learned(BEFORE, recovering)
    assert (view.acked, view.committed, view.term) == (NO_INDEX, NO_INDEX, 3)


def test_two_memories_say_more_than_one() -> None:
    other = Known(4, 44, term=2, acked_term=2, acked=500, committed=95)
    both = Known(4, 44, term=3, acked_term=3, acked=100, committed=95)
    assert merged(BEFORE, other) == merged(other, BEFORE) == both
    reborn = Known(1, 11, incarnation=7)
    assert merged(BEFORE, reborn) == merged(reborn, BEFORE) == reborn


# --- The memory of one node ---


def test_a_node_is_judged_by_what_was_known_when_it_was_asked() -> None:
    """Acks that came after it was asked are beyond what it answered."""
    lives = Lives()
    assert lives.judge(2, TOLD) == ""
    before = lives.of(2)
    lives.hear(2, Known(4, 44, term=3, acked_term=3, acked=130))

    assert lives.judge(2, TOLD, asked=before) == ""
    assert "had acked 130" in lives.judge(2, TOLD)
    assert lives.of(2).acked == 130


def test_the_memory_of_another_node_finds_a_believed_copy() -> None:
    lives = Lives()
    assert lives.judge(2, TOLD) == ""

    why = lives.hear(2, BEFORE._replace(acked=101))

    assert "had acked 101" in why
    assert "had acked 101" in lives.judge(2, TOLD), "it is not believed the next time either"
    assert lives.judge(2, TOLD._replace(joined=9, incarnation=9)) == ""


COPY = ToldLife(3, 99, 2, 50, 2, 50, Standing.FULL, 0, 0, (22,))
"""An old copy of a node that was seen in its third life: it begins that life a second time."""


@pytest.mark.parametrize("was_refused_before", [True, False])
@pytest.mark.parametrize("is_after_a_restart", [True, False])
@pytest.mark.parametrize(
    "copy",
    [
        COPY,
        COPY._replace(life=4, nonce=100, past=(99, 22)),  # It was started more often.
        COPY._replace(life=2, past=(11,)),
        # Nothing but its life shows it, and it has heard of the newest term since.
        COPY._replace(start_term=3, start_last_index=100, term=7, last_index=200),
        ToldLife(9, 109, 3, 100, 7, 200, Standing.FULL, 0, 0, (108, 107, 106, 105, 104, 99, 22)),
        COPY._replace(incarnation=1, standing=Standing.RECOVERING),  # It lost power.
    ],
)
def test_a_stranger_that_believes_a_copy_makes_nobody_else_believe_it(
    copy: ToldLife, is_after_a_restart: bool, was_refused_before: bool
) -> None:
    """A new member knows nothing of the node, so it believes the copy and tells what it saw."""
    witness, stranger = Lives(), Lives()
    node = TOLD._replace(life=3, nonce=33, past=(22,))
    assert witness.judge(2, node) == ""
    witness.note(2, Known(term=3, acked_term=3, acked=100, committed=90))
    if is_after_a_restart:
        witness = Lives(witness.known, witness.apart)
    if was_refused_before:
        assert witness.judge(2, copy)
    assert stranger.judge(2, copy) == ""

    witness.hear(2, stranger.of(2))

    if is_after_a_restart:
        witness = Lives(witness.known, witness.apart)
    assert witness.judge(2, copy), "it is an old copy, whatever a stranger saw"
    assert memory_lost(witness.of(2), copy), "the copy is told what makes it one"
    witness.hear(2, stranger.of(2))
    assert memory_lost(witness.of(2), copy), "also after the stranger told of it again"
    stranger.hear(2, witness.of(2))
    assert stranger.judge(2, copy), "the stranger is told, too"
    joining = copy._replace(joined=9, incarnation=9, standing=Standing.JOINING)
    assert witness.judge(2, joining) == stranger.judge(2, joining) == ""
    assert witness.apart == {}
    for disk in (node, copy):
        assert witness.judge(2, disk), "both disks are older than the newest memory of the node"


@pytest.mark.parametrize("is_after_a_restart", [True, False])
def test_a_restart_that_another_node_told_of_is_no_old_copy(is_after_a_restart: bool) -> None:
    lives = Lives()
    lives.judge(2, TOLD)
    lives.note(2, Known(term=3, acked_term=3, acked=120, committed=120))
    if is_after_a_restart:
        lives = Lives(lives.known)
    again = TOLD._replace(life=6, nonce=66, start_last_index=120, past=(55, 44, 33, 22))
    for seen in (Known(5, 55, term=3), Known(6, 66, term=3, acked_term=3, acked=130)):
        lives.hear(2, seen)
    assert lives.of(2) == Known(6, 66, 0, 3, 3, 130, 120), "what it promised then is expected"

    assert lives.judge(2, again, asked=Known()) == ""
    assert lives.of(2) == Known(6, 66, 0, 3, 3, 130, 120)
    assert lives.apart == {}


@pytest.mark.parametrize("lives_told", [range(1, 100), (1,) * APART_MAX + (9,) * 9, (1, 2) * 50])
@pytest.mark.parametrize("incarnation", [0, 1])
def test_a_peer_that_tells_of_many_lives_does_not_drive_out_the_own_memory(
    lives_told: Sequence[int], incarnation: int
) -> None:
    """It gains that the node itself is refused, as with one such lie, and no copy is believed."""
    lives = Lives({2: BEFORE})
    for at, life in enumerate(lives_told):
        lives.hear(2, Known(life, 1_000 + at, incarnation))
        lives = _after_a_restart(lives) if at % 7 == 0 else lives

    assert len(lives.apart[2]) == APART_MAX
    assert any(one.nonce == BEFORE.nonce for one in (lives.of(2), *lives.apart[2]))
    copy = ToldLife(3, 39, 3, 100, 3, 120, Standing.FULL, incarnation, 0, (22,))
    for claimed in (lives.of(2), *lives.apart[2]):
        if claimed.nonce != BEFORE.nonce:
            lying = copy._replace(life=claimed.life, nonce=claimed.nonce)
            assert lives.judge(2, lying), "not even with a life that was told of"
    assert lives.judge(2, copy)
    if lives.of(2).nonce != BEFORE.nonce:
        assert lives.judge(2, TOLD), "the node itself is refused"
    joining = TOLD._replace(joined=2, incarnation=2, standing=Standing.JOINING)
    assert lives.judge(2, joining) == "", "until it begins without memory"
    assert lives.apart == {}


def test_many_lives_hide_a_life_from_a_stranger_and_no_promise_of_it() -> None:
    """A node without a memory of its own believes the first who tell it of one."""
    lives = Lives()
    for life in range(1, APART_MAX + 2):
        lives.hear(2, Known(life, 1_000 + life))
    assert lives.dropped_count == 0
    dropped = BEFORE._replace(life=2 * APART_MAX, nonce=77)
    lives.hear(2, dropped)

    assert lives.dropped_count == 1
    views = (lives.of(2), *lives.apart[2])
    assert all(one.nonce != dropped.nonce for one in views), "the life of it is lost here"
    assert (lives.of(2).acked, lives.of(2).committed) == (100, 90), "what it promised is expected"
    again = _after_a_restart(lives)
    older = ToldLife(99, 990, 2, 80, 2, 80, Standing.FULL, 0, 0)
    assert "its term was 2" in again.judge(2, older)


def _after_a_restart(lives: Lives) -> Lives:
    return Lives(lives.known, lives.apart)


def test_a_node_that_tells_no_life_is_not_remembered() -> None:
    lives = Lives()
    assert lives.judge(2, TOLD._replace(life=0)) == ""
    assert lives.known == {}


def test_a_leader_remembers_what_was_acked(cluster: Cluster) -> None:
    cluster.replicate(1, ["a"])
    lives = Lives()

    lives.look(cluster.state(1))

    assert lives.of(2) == lives.of(3) == Known(0, 0, 0, 1, 1, 1, 1)
    cluster.receive(1, append_reply(3, 1, 1, standing=Standing.JOINING, incarnation=9))
    lives.judge(2, TOLD._replace(start_term=1, start_last_index=1))
    lives.look(cluster.state(1))
    assert lives.of(3) == Known(0, 0, 9, 1, 1, NO_INDEX, NO_INDEX), "a disk that told no life"


def test_acks_of_an_incarnation_that_was_not_told_say_nothing(cluster: Cluster) -> None:
    """Whoever lost its memory tells its life before anything it acked then is believed."""
    cluster.deliver()
    lives = Lives()
    statement = TOLD._replace(start_term=1, start_last_index=0, term=1, last_index=0)
    lives.judge(3, statement)
    cluster.receive(1, append_reply(3, 1, 1, match=0, standing=Standing.JOINING, incarnation=9))

    lives.look(cluster.state(1))
    assert lives.of(3).incarnation == 0
    assert lives.judge(3, statement._replace(incarnation=9, joined=9)) == ""
    lives.look(cluster.state(1))
    assert (lives.of(3).incarnation, lives.of(3).acked) == (9, 0)


def test_a_voter_is_remembered_in_the_term_of_its_election() -> None:
    cluster = Cluster()
    cluster.isolate(3)
    cluster.beat(2, 2 * ELECTION_TICKS)
    first, second = Lives(), Lives()

    first.look(cluster.state(1))
    second.look(cluster.state(2))

    assert first.of(2).term == 1, "it asked for a vote"
    assert second.of(1).term == 1, "it gave one"
    assert not cluster.state(1).terms_seen, "it is looked at once"


def test_a_number_is_forgotten() -> None:
    lives = Lives({2: BEFORE})
    lives.hear(2, BEFORE._replace(life=4, nonce=45))
    lives.forget(2)
    assert lives.of(2) == UNKNOWN
    assert lives.apart == {}

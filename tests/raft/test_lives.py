"""What others remember of a node, and which disks are found to be old copies by it."""

from __future__ import annotations

from typing import Any

import pytest

from raft.lives import UNKNOWN, Known, Lives, ToldLife, learned, memory_lost, merged
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
        (BEFORE._replace(life=0, nonce=0), {}),  # It was of an older version.
        (BEFORE._replace(life=9), {"life": 0}),  # It is of an older version.
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
    known = learned(BEFORE, TOLD)._replace(acked=120)

    assert memory_lost(known, TOLD) == ""
    assert "had acked 120" in memory_lost(known, TOLD._replace(last_index=119))
    assert memory_lost(known, TOLD._replace(last_index=119, term=4)) == ""
    assert "had been in 3" in memory_lost(known, TOLD._replace(term=2))


def test_a_node_that_began_without_memory_is_known_anew() -> None:
    joined = TOLD._replace(life=1, nonce=1, joined=7, incarnation=7, term=0, past=())
    assert learned(BEFORE, joined) == Known(1, 1, 7, 0)
    again = joined._replace(life=2, nonce=2, past=(1,))
    assert memory_lost(learned(BEFORE, joined), again) == ""
    assert "incarnation" in memory_lost(learned(BEFORE, joined), TOLD), "the old disk is put back"


def test_acks_before_a_loss_of_power_are_not_expected_any_more() -> None:
    recovering = TOLD._replace(start_last_index=5, incarnation=1, standing=Standing.RECOVERING)
    known = learned(BEFORE, recovering)
    assert (known.acked, known.committed, known.term) == (NO_INDEX, NO_INDEX, 3)


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
    asked = lives.of(2)
    lives.hear(2, Known(4, 44, term=3, acked_term=3, acked=130))

    assert lives.judge(2, TOLD, asked=asked) == ""
    assert "had acked 130" in lives.judge(2, TOLD)
    assert lives.of(2).acked == 130


def test_the_memory_of_another_node_finds_a_believed_copy() -> None:
    lives = Lives()
    assert lives.judge(2, TOLD) == ""

    why = lives.hear(2, BEFORE._replace(acked=101))

    assert "had acked 101" in why
    assert "had acked 101" in lives.judge(2, TOLD), "it is not believed the next time either"
    assert lives.judge(2, TOLD._replace(joined=9, incarnation=9)) == ""


def test_the_memory_of_another_node_of_the_same_life_is_added() -> None:
    lives = Lives()
    lives.judge(2, TOLD)

    assert lives.hear(2, Known(4, 44, term=3, acked_term=3, acked=500)) == ""

    assert lives.of(2).acked == 500
    again = TOLD._replace(life=5, nonce=55, past=(44, 33))
    assert "had acked 500" in lives.judge(2, again)


def test_a_node_that_tells_no_life_is_not_remembered() -> None:
    lives = Lives()
    assert lives.judge(2, TOLD._replace(life=0)) == ""
    assert lives.known == {}


def test_a_leader_remembers_what_was_acked() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.propose(1, "a")
    cluster.deliver()
    lives = Lives()

    lives.look(cluster.state(1))

    assert lives.of(2) == lives.of(3) == Known(0, 0, 0, 1, 1, 1, 1)
    cluster.receive(1, append_reply(3, 1, 1, standing=Standing.JOINING, incarnation=9))
    lives.judge(2, TOLD._replace(start_term=1, start_last_index=1))
    lives.look(cluster.state(1))
    assert lives.of(3) == Known(0, 0, 9, 1, 1, NO_INDEX, NO_INDEX), "a disk of an older version"


def test_acks_of_an_incarnation_that_was_not_told_say_nothing() -> None:
    """Whoever lost its memory tells its life before anything it acked then is believed."""
    cluster = Cluster()
    cluster.elect(1)
    cluster.deliver()
    lives = Lives()
    told = TOLD._replace(start_term=1, start_last_index=0, term=1, last_index=0)
    lives.judge(3, told)
    cluster.receive(1, append_reply(3, 1, 1, match=0, standing=Standing.JOINING, incarnation=9))

    lives.look(cluster.state(1))
    assert lives.of(3).incarnation == 0
    assert lives.judge(3, told._replace(incarnation=9, joined=9)) == ""
    lives.look(cluster.state(1))
    assert (lives.of(3).incarnation, lives.of(3).acked) == (9, 0)


def test_a_voter_is_remembered_in_the_term_of_its_election() -> None:
    cluster = Cluster()
    cluster.isolate(3)
    cluster.tick(2, 2 * ELECTION_TICKS)
    cluster.deliver()
    one, two = Lives(), Lives()

    one.look(cluster.state(1))
    two.look(cluster.state(2))

    assert one.of(2).term == 1, "it asked for a vote"
    assert two.of(1).term == 1, "it gave one"
    assert not cluster.state(1).terms_seen, "it is looked at once"


def test_a_number_is_forgotten() -> None:
    lives = Lives({2: BEFORE})
    lives.forget(2)
    assert lives.of(2) == UNKNOWN

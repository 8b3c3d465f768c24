"""An empty disk founds a cluster only if all voters have one."""

import pytest

from node.replication.foundation import Founding, Verdict


def test_founds_when_every_voter_is_empty() -> None:
    """The first start of a cluster."""
    founding = Founding(1, [1, 2, 3])
    founding.on_peer(2, -1)
    assert (founding.verdict, founding.missing) == (Verdict.WAIT, (3,))
    founding.on_peer(3, -1)
    assert (founding.verdict, founding.missing) == (Verdict.FOUND, ())


@pytest.mark.parametrize("order", [(2, 3), (3, 2)])
def test_joins_when_any_voter_has_an_entry(order: tuple[int, int]) -> None:
    """R29: a wiped voter never founds a second cluster beside the living one."""
    founding = Founding(1, [1, 2, 3])
    for node in order:
        founding.on_peer(node, 7 if node == 3 else -1)
    assert founding.verdict is Verdict.JOIN


def test_a_living_peer_is_enough() -> None:
    """Nobody waits for a voter that is down."""
    founding = Founding(1, [1, 2, 3])
    founding.on_peer(2, 0)
    assert founding.verdict is Verdict.JOIN


def test_a_wiped_voter_waits_while_the_only_one_who_knows_is_away() -> None:
    """Node 1 acked with node 3 and lost its disk; node 2 never got anything."""
    founding = Founding(1, [1, 2, 3])
    founding.on_peer(2, -1)
    founding.on_peer(2, -1)
    assert founding.verdict is Verdict.WAIT


def test_a_single_node_founds_at_once() -> None:
    """There is nobody to ask."""
    assert Founding(1, [1]).verdict is Verdict.FOUND


def test_a_node_that_is_no_voter_joins() -> None:
    """A learner to be never founds."""
    assert Founding(4, [1, 2, 3]).verdict is Verdict.JOIN


def test_no_node_begins_before_all_have_founded() -> None:
    """Else two could write entries while the third still asks, and takes itself for a wiped one."""
    founding = Founding(1, [1, 2, 3])
    founding.on_peer(2, -1)
    founding.on_peer(3, -1)
    assert founding.verdict is Verdict.FOUND
    founding.on_founded(2)
    assert not founding.may_begin
    assert founding.unfounded == (3,)
    founding.on_founded(3)
    assert founding.may_begin


def test_a_founder_begins_when_the_cluster_lives() -> None:
    """It was away while the others began."""
    founding = Founding(1, [1, 2, 3])
    founding.on_peer(3, 0)
    assert founding.may_begin


def test_a_peer_that_founded_counts_as_heard() -> None:
    """Its disk is empty, or the handshake had said otherwise."""
    founding = Founding(1, [1, 2])
    founding.on_founded(2)
    assert founding.verdict is Verdict.FOUND

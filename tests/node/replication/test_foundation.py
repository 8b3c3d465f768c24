"""An empty disk founds a cluster only if all voters have one."""

import pytest

from node.replication.foundation import Foundation, FoundingVerdict


def test_founds_when_every_voter_is_empty() -> None:
    """The first start of a cluster."""
    foundation = Foundation(1, [1, 2, 3])
    foundation.on_peer(2, -1)
    assert (foundation.verdict, foundation.missing) == (FoundingVerdict.WAIT, (3,))
    foundation.on_peer(3, -1)
    assert (foundation.verdict, foundation.missing) == (FoundingVerdict.FOUND, ())


@pytest.mark.parametrize("order", [(2, 3), (3, 2)])
def test_joins_when_any_voter_has_an_entry(order: tuple[int, int]) -> None:
    """R29: a wiped voter never founds a second cluster beside the living one."""
    foundation = Foundation(1, [1, 2, 3])
    for node in order:
        foundation.on_peer(node, 7 if node == 3 else -1)
    assert foundation.verdict is FoundingVerdict.JOIN


def test_a_living_peer_is_enough() -> None:
    """Nobody waits for a voter that is down."""
    foundation = Foundation(1, [1, 2, 3])
    foundation.on_peer(2, 0)
    assert foundation.verdict is FoundingVerdict.JOIN


def test_a_wiped_voter_waits_while_the_only_one_who_knows_is_away() -> None:
    """Node 1 acked with node 3 and lost its disk; node 2 never got anything."""
    foundation = Foundation(1, [1, 2, 3])
    foundation.on_peer(2, -1)
    foundation.on_peer(2, -1)
    assert foundation.verdict is FoundingVerdict.WAIT


def test_a_single_node_founds_at_once() -> None:
    """There is nobody to ask."""
    assert Foundation(1, [1]).verdict is FoundingVerdict.FOUND


def test_a_node_that_is_no_voter_joins() -> None:
    """A learner to be never founds."""
    assert Foundation(4, [1, 2, 3]).verdict is FoundingVerdict.JOIN


def test_no_node_begins_before_all_have_founded() -> None:
    """Else two could write entries while the third still asks, and takes itself for a wiped one."""
    foundation = Foundation(1, [1, 2, 3])
    foundation.on_peer(2, -1)
    foundation.on_peer(3, -1)
    assert foundation.verdict is FoundingVerdict.FOUND
    foundation.on_founded(2)
    assert not foundation.may_begin
    assert foundation.unfounded == (3,)
    foundation.on_founded(3)
    assert foundation.may_begin


def test_a_founder_begins_when_the_cluster_lives() -> None:
    """It was away while the others began."""
    foundation = Foundation(1, [1, 2, 3])
    foundation.on_peer(3, 0)
    assert foundation.may_begin


def test_a_peer_that_founded_counts_as_a_contact() -> None:
    """Its disk is empty, or the handshake had said otherwise."""
    foundation = Foundation(1, [1, 2])
    foundation.on_founded(2)
    assert foundation.verdict is FoundingVerdict.FOUND

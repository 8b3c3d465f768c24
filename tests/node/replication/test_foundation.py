"""An empty disk founds a cluster only if all voters have one."""

import pytest

from node.replication.foundation import Foundation, FoundingVerdict

WAIT, FOUND, JOIN = FoundingVerdict.WAIT, FoundingVerdict.FOUND, FoundingVerdict.JOIN


@pytest.mark.parametrize(
    ("voters", "peers", "verdict", "missing"),
    [
        ((1, 2, 3), [(2, -1)], WAIT, (3,)),
        ((1, 2, 3), [(2, -1), (3, -1)], FOUND, ()),
        ((1,), [], FOUND, ()),  # There is nobody to ask.
        ((1, 2, 3), [(2, 0)], JOIN, (3,)),  # Nobody waits for a voter that is down.
        # R29: a wiped voter never founds a second cluster beside the living one.
        ((1, 2, 3), [(2, -1), (3, 7)], JOIN, ()),
        ((1, 2, 3), [(3, 7), (2, -1)], JOIN, ()),
        # Node 1 acked with node 3 and lost its disk; node 2 never got anything.
        ((1, 2, 3), [(2, -1), (2, -1)], WAIT, (3,)),
        ((2, 3, 4), [], JOIN, (2, 3, 4)),  # A learner to be never founds.
    ],
)
def test_an_empty_disk_founds_only_beside_empty_disks_of_all_voters(
    voters: tuple[int, ...],
    peers: list[tuple[int, int]],
    verdict: FoundingVerdict,
    missing: tuple[int, ...],
) -> None:
    foundation = Foundation(1, voters)
    for node, last_index in peers:
        foundation.on_peer(node, last_index)
    assert (foundation.verdict, foundation.missing) == (verdict, set(missing))


def test_no_node_begins_before_all_have_founded() -> None:
    """Else two could write entries while the third still asks, and takes itself for a wiped one."""
    foundation = Foundation(1, [1, 2, 3])
    foundation.on_peer(2, -1)
    foundation.on_peer(3, -1)
    assert foundation.verdict is FoundingVerdict.FOUND
    foundation.on_founded(2)
    assert not foundation.may_begin
    assert foundation.unfounded == {3}
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

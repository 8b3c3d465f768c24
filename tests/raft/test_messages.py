"""Rule R42: messages that must not have come here; and what errors look like."""

from __future__ import annotations

import pickle

import pytest

from raft import errors
from raft.errors import Outcome, PeerProtocolError, RaftError
from raft.messages import Message
from tests.raft.builders import append, append_reply, campaign_now, vote_reply, vote_request
from tests.raft.cluster import Cluster

KINDS: list[Message] = [
    vote_request(2, 1, 9),
    vote_reply(2, 1, 9),
    append(2, 1, 9),
    append_reply(2, 1, 9),
    campaign_now(2, 1, 9),
]


@pytest.mark.parametrize("message", KINDS)
def test_foreign_cluster_rejected(message: Message) -> None:
    cluster = Cluster()
    for wrong, complaint in (
        (message._replace(group="other"), "belongs to cluster 'other'"),
        (message._replace(to=3), "message for node 3 came here"),
        (message._replace(sender=1), "sender is this node"),
        (message._replace(sender=0), "sender is this node or no node"),
    ):
        with pytest.raises(PeerProtocolError, match=complaint):
            cluster.receive(1, wrong)

    assert cluster.state(1).term == 0
    assert cluster.sent == []


@pytest.mark.parametrize("prev_index", [-2, -(2**62)])
def test_append_before_the_first_index_is_refused(prev_index: int) -> None:
    cluster = Cluster()
    message = append(2, 1, 9, prev=(prev_index, 0))
    with pytest.raises(PeerProtocolError, match="append of"):
        cluster.receive(1, message)
    assert cluster.state(1).term == 0


EXAMPLES: list[RaftError] = [
    errors.NotLeaderError(3),
    errors.TransferringError(2),
    errors.BusyError("reads", 5, 5),
    errors.ChangeRefusedError(4, "it is behind"),
    errors.ChangeInvalidError(4, "it is no member"),
    errors.TransferRefusedError(4, "behind"),
    errors.TransferInvalidError(4, "it is no other voter"),
    errors.RecoveryRefusedError("standing is full"),
    errors.PeerProtocolError(2, "nonsense"),
    errors.TermJumpError(2, 900, 8),
    errors.ForeignChainError(2, "other bytes", 7, 12),
    errors.HardStateNotSavedError("no space"),
    errors.CompactionRefusedError(7, 3),
]


@pytest.mark.parametrize("error", EXAMPLES)
def test_errors_pickle_and_say_what_is_known(error: RaftError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.__dict__) == (type(error), str(error), error.__dict__)
    assert error.code.startswith("raft.")
    assert error.outcome is Outcome.NOT_APPLIED
    assert isinstance(error.retryable, bool)


def test_every_error_has_an_example_and_its_own_code() -> None:
    classes = set(RaftError.__subclasses__())
    classes |= {below for kind in classes for below in kind.__subclasses__()}
    assert classes == {type(error) for error in EXAMPLES}
    assert len({cls.code for cls in classes}) == len(classes)

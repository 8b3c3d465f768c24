"""What a start says of a term or an epoch that no elections explain."""

import pickle

import pytest

from node.config.limits import EPOCH_END
from node.replication.term_end import (
    EPOCH_NOTABLE,
    TermEndError,
    epoch_warnings,
    refuse_epoch_end,
    refuse_term_end,
    term_warnings,
)
from raft.ceiling import TERM_END, TERM_NOTABLE


@pytest.mark.parametrize("term", [TERM_END - 1, TERM_END, (1 << 63) - 1])
def test_a_term_at_the_end_names_the_way_back(term: int) -> None:
    with pytest.raises(TermEndError, match=f"term {term} .*'qlog store restore'") as caught:
        refuse_term_end("data", term)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    refuse_term_end("data", TERM_END - 2)


def test_an_epoch_at_the_end_does_not_name_what_is_for_raft_alone() -> None:
    with pytest.raises(TermEndError, match=f"epoch {EPOCH_END - 1} .*put back a backup") as caught:
        refuse_epoch_end("data", EPOCH_END - 1)
    assert "qlog store restore" not in str(caught.value)
    refuse_epoch_end("data", EPOCH_END - 2)


def test_an_absurd_term_that_works_is_told() -> None:
    assert term_warnings(TERM_NOTABLE - 1) == ()
    (warning,) = term_warnings(TERM_NOTABLE)
    assert "no elections explain term 2147483648" in warning
    assert epoch_warnings(EPOCH_NOTABLE - 1) == ()
    assert "epoch 32768" in epoch_warnings(EPOCH_NOTABLE)[0]

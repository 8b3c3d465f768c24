"""Texts that clients hand back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.rocketmq.protocol.handles import ReceiptHandle, parse
from node.rocketmq.protocol.statuses import CallRefusedError
from quorumlog.pb.rocketmq_pb2 import Code


@given(group=st.text(min_size=1, max_size=127), inner=st.text(min_size=1, max_size=200))
def test_a_handle_comes_back(group: str, inner: str) -> None:
    assert parse(str(ReceiptHandle(group, inner)), Code.BAD_REQUEST) == (group, inner)


@given(st.text(max_size=40).filter(lambda text: not text[:1].isdecimal()))
def test_any_other_text_is_refused_by_its_code(text: str) -> None:
    with pytest.raises(CallRefusedError) as refused:
        parse(text, Code.INVALID_RECEIPT_HANDLE)
    assert refused.value.code == Code.INVALID_RECEIPT_HANDLE


@pytest.mark.parametrize(
    "text", ["", "2.g", "2.g0", "2.g0.", "x.g0.h", "3.g0.h", "2." + "g" * 5000]
)
def test_texts_that_are_cut_or_long(text: str) -> None:
    with pytest.raises(CallRefusedError):
        parse(text, Code.BAD_REQUEST)

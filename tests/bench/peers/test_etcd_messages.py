"""The messages of the peer byte for byte, and what is said without it."""

from bench.peers.etcd_messages import message_classes

M = message_classes()


def test_requests_have_the_bytes_that_etcd_reads() -> None:
    """Tag, length, value: by hand from the field numbers."""
    put = M["PutRequest"](key=b"k", value=b"vv")
    assert put.SerializeToString() == b"\x0a\x01k\x12\x02vv"
    txn = M["TxnRequest"](success=[M["RequestOp"](request_put=put)] * 2)
    operation = b"\x12\x07" + put.SerializeToString()
    assert txn.SerializeToString() == (b"\x12\x09" + operation) * 2


def test_answers_are_read_and_unknown_fields_are_skipped() -> None:
    answer = M["TxnResponse"].FromString(b"\x0a\x04\x10\x07\x20\x05\x10\x01\x1a\x00")
    assert (answer.header.member_id, answer.succeeded) == (7, True)


def test_a_page_of_keys_is_read() -> None:
    answer = M["RangeResponse"].FromString(b"\x12\x07\x0a\x01k\x2a\x02vv\x18\x01\x20\x05")
    assert [(one.key, one.value) for one in answer.kvs] == [(b"k", b"vv")]
    assert answer.more

"""Properties of sent messages: usual ones stay as they came, and all mean what they meant."""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from node.rocketmq.protocol.properties import ADDED
from node.rocketmq.remoting.calls.sent_messages import (
    Entry,
    StoredProperties,
    entries_of,
    uniform_entries,
    unique_key,
)
from node.rocketmq.remoting.protocol.answers import RefusedError
from store.errors import RecordFormatError
from store.record.columns import UNIFORM_COUNT_MIN
from store.record.message import decode_properties, encode_properties
from tests.node.rocketmq.remoting.clients import entry

# fmt: off
PIECES = st.sampled_from([
    b"UNIQ_KEY\x01", b"K1", b"\x02", b"\x01", b"TAGS\x01a\x02", b"WAIT\x01true\x02", b"\xc3\xa9",
    b"DELAY\x01", b"TIMER_DELAY_MS\x01", b"5\x02", b"REPLY_TO_CLIENT\x01c\x02", b"__CRC32#\x01",
    b"\x00", b"xUNIQ_KEY\x01a\x02", b"UNIQ_KEY\x01B2\x02",
])
# fmt: on


@given(st.lists(st.lists(PIECES, max_size=8).map(b"".join), min_size=1, max_size=3))
@example([b"UNIQ_KEY\x01K\x02WAIT\x01true"])
@example([b"A\x01UNIQ_KEY\x02"])
@example([b"UNIQ_KEY\x01AB\x02TRACE_ON\x01false\x02"])
@example([b"a\x02b\x01\x01c\x02"])
@example([b"A\x01b\x02UNIQ_KEY\x01AB\x02", b"A\x01b\x02UNIQ_KEY\x01CD\x02"])
@example([b"UNIQ_KEY\x01AB\x02", b"UNIQ_KEY\x01A\x01\x02", b"UNIQ_KEY\x01\x02\x02\x02"])
@example([b"UNIQ_KEY\x01AB\x02", b"UNIQ_KEY\x01A\xc3\x02", b"UNIQ_KEY\x01AB\x01", b"UNIQ_KEY\x01A"])
def test_properties_are_stored_as_the_readable_path_would(sent: list[bytes]) -> None:
    stored = StoredProperties("cluster")
    keys, delayed = [], False
    for data in sent:
        wanted = decode_properties(data)
        assert unique_key(data) == wanted.get("UNIQ_KEY", "")
        try:
            encoded = stored.of(data)
        except RecordFormatError:
            with pytest.raises(RecordFormatError):
                encode_properties(wanted)
            return
        except UnicodeEncodeError:
            with pytest.raises(UnicodeEncodeError):
                encode_properties(wanted)
            return
        key = decode_properties(encoded)["UNIQ_KEY"]
        assert wanted.setdefault("UNIQ_KEY", key) == key, "a message without a key gets one"
        if "REPLY_TO_CLIENT" in wanted:
            wanted["CLUSTER"] = "cluster"
        assert encoded == encode_properties(wanted | ADDED)
        keys.append(key)
        delayed |= "DELAY" in wanted or "TIMER_DELAY_MS" in wanted
        assert (stored.first_key, stored.has_delayed) == (keys[0], delayed)


def test_entries_of_a_batch_are_read_in_order() -> None:
    batch = entry(b"one", b"A\x01a\x02", 1) + entry(b"", b"", 2)
    assert list(entries_of(batch)) == [Entry(1, b"one", b"A\x01a\x02"), Entry(2, b"", b"")]


FORMS = (
    b"UNIQ_KEY\x01%b\x02WAIT\x01true\x02",
    b"UNIQ_KEY\x01%b\x02WAIT\x01true",
    b"A\x01b\x02UNIQ_KEY\x01%b",
    b"A\x01b\x02xUNIQ_KEY\x01%b\x02",
    b"DELAY\x01%b\x02UNIQ_KEY\x01K\x02",
    b"%b",
)


@given(
    form=st.sampled_from(FORMS),
    count=st.integers(7, 20),
    body=st.binary(max_size=5),
    other=st.one_of(st.none(), st.tuples(st.integers(0, 19), st.integers(0, 60))),
)
def test_uniform_messages_are_those_of_the_loop(
    form: bytes, count: int, body: bytes, other: tuple[int, int] | None
) -> None:
    """By column or none; one changed byte in any of them makes it none, or changes both alike."""
    entries = [entry(body, form % b"K%03d" % n, 3) for n in range(count)]
    if other is not None:
        number, at = other[0] % count, other[1] % len(entries[0])
        data = bytearray(entries[number])
        data[at] ^= 1
        entries[number] = bytes(data)
    batch = b"".join(entries)
    run = uniform_entries(batch)
    if other is None:
        assert (run is not None) == (count >= UNIFORM_COUNT_MIN and form in FORMS[:3])
    if run is None:
        return
    stored = StoredProperties("cluster")
    wanted = [(flag, body, stored.of(data)) for flag, body, data in entries_of(batch)]
    pairs = zip(run.bodies, run.keys, strict=True)
    assert [(run.flag, body, run.before + key + run.behind) for body, key in pairs] == wanted
    assert stored.first_key == run.keys[0].decode()


@pytest.mark.parametrize(
    "batch",
    [
        b"",
        entry(b"one")[:-1],
        entry(b"one") + b"\x00",
        struct.pack(">iIIii", 22, 0, 0, 0, -1) + bytes(2),
        struct.pack(">iIIii", 22, 0, 0, 0, 1 << 30) + bytes(2),
        struct.pack(">iIIii", 21, 0, 0, 0, 0) + b"\xff\xff",
    ],
)
def test_sizes_that_do_not_fit_are_refused(batch: bytes) -> None:
    with pytest.raises(RefusedError, match="its sizes do not fit"):
        list(entries_of(batch))


@pytest.mark.parametrize("more", [b"", b"REPLY_TO_CLIENT\x01c\x02"])
def test_properties_that_a_record_can_hold_are_stored_without_those_of_a_broker(
    more: bytes,
) -> None:
    stored = StoredProperties("cluster")
    properties = b"UNIQ_KEY\x01AB\x02" + more
    properties += b"a\x01" + b"b" * (32_740 - len(properties)) + b"\x02"
    for _ in range(2):  # The second one is like the first.
        stored_properties = decode_properties(stored.of(properties))
        assert stored_properties.keys() & ADDED.keys() == set()
        assert stored_properties["a"] == decode_properties(properties)["a"]

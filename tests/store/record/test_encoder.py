"""Records of an encoder are those of `encode_message`, byte by byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import format as fmt
from store.errors import LimitExceededError, TopicNameError
from store.record.encoder import CommonFields, RecordEncoder
from store.record.message import encode_message, encode_properties

HOSTS = st.sampled_from([("127.0.0.1", 10911), ("255.1.2.3", 0), ("::1", 7), ("fe80::1", 65535)])
TOPICS = st.sampled_from(["a", "orders", "t" * 127, "%RETRY%" + "g" * 200])
TEXT = st.text(
    st.characters(exclude_characters="\x00\x01\x02", exclude_categories=["Cs"]), min_size=1
)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)


@given(
    topic=TOPICS,
    queue_id=st.integers(0, 1000),
    sys_flag=st.sampled_from([0, 1, 0x701, 0x4]),
    born_unix_ms=st.integers(0, (1 << 63) - 1),
    born_host=HOSTS,
    store_host=HOSTS,
    reconsume_times=st.integers(0, (1 << 31) - 1),
    messages=st.lists(st.tuples(INT32, st.binary(max_size=40), st.dictionaries(TEXT, TEXT))),
)
def test_records_equal_those_of_the_readable_path(
    topic: str,
    queue_id: int,
    sys_flag: int,
    born_unix_ms: int,
    born_host: tuple[str, int],
    store_host: tuple[str, int],
    reconsume_times: int,
    messages: list[tuple[int, bytes, dict[str, str]]],
) -> None:
    common = CommonFields(
        topic, queue_id, sys_flag, born_unix_ms, born_host, store_host, reconsume_times
    )
    encoder, wanted = RecordEncoder(common), list[bytes]()
    for flag, body, properties in messages:
        encoder.add(flag, body, encode_properties(properties))
        wanted.append(
            encode_message(
                topic,
                queue_id,
                body,
                properties,
                flag=flag,
                sys_flag=sys_flag,
                born_unix_ms=born_unix_ms,
                born_host=born_host,
                store_host=store_host,
                reconsume_times=reconsume_times,
            )
        )
    assert encoder.records() == b"".join(wanted)
    assert encoder.sizes == list(map(len, wanted))


@given(
    topic=TOPICS,
    host=HOSTS,
    flag=INT32,
    count=st.integers(1, 12),
    body_size_bytes=st.integers(0, 9),
    parts=st.tuples(st.binary(max_size=6), st.integers(0, 6)),
    data=st.data(),
)
def test_a_run_equals_its_records_one_by_one(
    topic: str,
    host: tuple[str, int],
    flag: int,
    count: int,
    body_size_bytes: int,
    parts: tuple[bytes, int],
    data: st.DataObject,
) -> None:
    before, key_size_bytes, behind = b"a\x01" + parts[0].hex().encode(), parts[1], b"z\x02"
    bodies = [data.draw(st.binary(min_size=body_size_bytes, max_size=body_size_bytes))] * count
    bodies[-1] = bodies[-1][::-1]
    keys = [str(n).zfill(6).encode()[6 - key_size_bytes :] for n in range(count)]
    common = CommonFields(topic, 3, 0, 7, host, host, 0)
    run, single = RecordEncoder(common), RecordEncoder(common)
    run.add_run(flag, bodies, before, keys, behind)
    for body, key in zip(bodies, keys, strict=True):
        single.add(flag, body, before + key + behind)
    assert run.records() == single.records()
    assert run.sizes == single.sizes


def common_of(topic: str) -> CommonFields:
    return CommonFields(topic, 0, 0, 0, fmt.LOOPBACK, fmt.LOOPBACK, 0)


@pytest.mark.parametrize("size_bytes", [255, 256, fmt.PROPERTIES_SIZE_BYTES_MAX])
def test_long_properties_are_encoded_up_to_the_limit(size_bytes: int) -> None:
    value = "v" * (size_bytes - 3)
    encoder = RecordEncoder(common_of("t"))
    encoder.add(0, b"x", f"a\x01{value}\x02".encode())
    assert encoder.records() == encode_message("t", 0, b"x", {"a": value})


def test_longer_properties_are_refused() -> None:
    with pytest.raises(LimitExceededError, match="properties"):
        RecordEncoder(common_of("t")).add(0, b"", bytes(fmt.PROPERTIES_SIZE_BYTES_MAX + 1))


def test_a_bad_topic_is_refused() -> None:
    with pytest.raises(TopicNameError):
        RecordEncoder(common_of("no spaces"))

"""Runs of uniform records are stamped and dispatched as the loop does it, one by one."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from store.config import StoreConfig
from store.derived import dispatch
from store.errors import StoreError
from store.record import stamp
from store.record.columns import UNIFORM_COUNT_MIN
from store.record.message import encode_message
from store.record.stamp import Stamper
from store.record.tail import TailReader

POSITION = 5_000
NOW = 1_700_000_000_000


KEYS: list[tuple[str, ...]] = [
    (),
    ("UNIQ_KEY", "%08X"),
    ("KEYS", "%08X"),
    ("KEYS", "%d"),
    ("KEYS", "a %06X"),
    ("UNIQ_KEY", "\x7f%08X"),
    ("UNIQ_KEY", "é%08X"),
    ("UNIQ_KEY", "%08X", "KEYS", "%08X"),
    ("xUNIQ_KEY", "%08X"),
]
"""Names and forms of the keys that a record may have."""


def record(
    number: int,
    *,
    queue_id: int = 1,
    size_bytes: int = 30,
    tag: str = "",
    keys: tuple[str, ...] = (),
    **how: Any,
) -> bytes:
    properties = {"TAGS": tag} if tag else {}
    for name, form in zip(keys[::2], keys[1::2], strict=True):
        properties[name] = form % (number & 0xFFFFFFFF)
    body = number.to_bytes(size_bytes, "big")
    return bytes(encode_message("orders", queue_id, body, properties=properties, **how))


def uniform(count: int, keys: tuple[str, ...] = ()) -> bytes:
    return b"".join(record(number, keys=keys) for number in range(count))


def stamped(batch: bytes, monkeypatch: pytest.MonkeyPatch, *, tries: int) -> object:
    """All that stamping a batch leads to; the error if it is refused."""
    monkeypatch.setattr(stamp, "_UNIFORM_TRIES", tries)
    stamper = Stamper(StoreConfig())
    stamper.next_offsets[b"orders", 1] = 1 << 33
    scratch = bytearray(7) + batch
    try:
        units = stamper.stamp(batch, scratch, 7, POSITION, NOW)
    except StoreError as error:
        return type(error), str(error)
    return bytes(scratch), units


class Walker(dispatch.Dispatcher):
    """Only the walk; it needs no files."""

    def __init__(self) -> None:
        super().__init__(None, None, None)  # type: ignore[arg-type]

    def walk(self, data: bytes) -> object:
        try:
            self._walk(POSITION, data)
        except StoreError as error:
            return type(error), str(error)
        return (
            [(topic, queue_id, list(units)) for topic, queue_id, _, units in self._touched],
            self._hashes,
            self._positions,
            self._store_unix_ms,
        )


def walked(data: bytes, monkeypatch: pytest.MonkeyPatch, *, tries: int) -> object:
    monkeypatch.setattr(dispatch, "_UNIFORM_TRIES", tries)
    return Walker().walk(data)


Way = Callable[..., object]


def agree(way: Way, data: bytes, monkeypatch: pytest.MonkeyPatch) -> object:
    by_columns, by_loop = (way(data, monkeypatch, tries=tries) for tries in (2, 0))
    assert by_columns == by_loop
    return by_columns


def stored(batch: bytes, monkeypatch: pytest.MonkeyPatch) -> bytes:
    outcome = agree(stamped, batch, monkeypatch)
    assert isinstance(outcome, tuple)
    data = outcome[0]
    assert isinstance(data, bytes)
    return data[7:]


@pytest.mark.parametrize("count", [1, UNIFORM_COUNT_MIN - 1, UNIFORM_COUNT_MIN, 40])
@pytest.mark.parametrize("keys", KEYS)
def test_a_run_is_the_same_by_columns(
    count: int, keys: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = stored(uniform(count, keys) + record(1, tag="last", keys=keys), monkeypatch)
    agree(walked, data, monkeypatch)


def test_a_run_with_keys_is_read_by_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the comparisons here would compare the loop with itself."""
    read = list[int]()
    monkeypatch.setattr(TailReader, "key_hashes", spy(TailReader.key_hashes, read))
    data = stored(uniform(40, ("UNIQ_KEY", "%08X")), monkeypatch)
    walked(data, monkeypatch, tries=2)
    assert read == [40, 40]


def spy(real: Way, read: list[int]) -> Way:
    def key_hashes(self: TailReader, tail: bytes, keys: list[bytes]) -> object:
        read.append(len(keys))
        return real(self, tail, keys)

    return key_hashes


def test_any_mixture_is_the_same_by_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(5)
    for _ in range(150):
        parts = []
        for _ in range(random.randrange(1, 6)):
            how: dict[str, Any] = {
                "queue_id": random.randrange(3),
                "size_bytes": random.choice([8, 30, 31]),
                "tag": random.choice(["", "", "red", "blue"]),
                "keys": random.choice(KEYS),
                "sys_flag": random.choice([0, 0, 0, 4, 8, 12]),
            }
            count = random.choice([1, 2, UNIFORM_COUNT_MIN, 20])
            parts += [record(random.randrange(1 << 40), **how) for _ in range(count)]
        data = stored(b"".join(parts), monkeypatch)
        agree(walked, data, monkeypatch)


@pytest.mark.parametrize("keys", [(), ("UNIQ_KEY", "%08X"), ("KEYS", "%08X")])
def test_each_flipped_byte_has_the_same_consequence(
    keys: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = uniform(12, keys)
    data = stored(batch, monkeypatch)
    size_bytes = len(batch) // 12
    for at in range(size_bytes):
        for number in (0, 5, 11):
            for way, good in ((stamped, batch), (walked, data)):
                bad = bytearray(good)
                bad[number * size_bytes + at] ^= 0x41
                agree(way, bytes(bad), monkeypatch)

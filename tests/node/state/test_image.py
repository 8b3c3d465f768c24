"""The bytes of a state: a state that could not be written again is refused."""

import json
from typing import Any

import pytest

from node.state.image import decode_image, encode_image
from node.state.state import Member, StateImage, Versions
from node.state.tables.topic_types import TopicSettings
from store.errors import CorruptionError

IMAGE = StateImage(
    7,
    3,
    Versions(),
    {"orders": TopicSettings(4, 6), "typed": TopicSettings(1, 4, "FIFO")},
    {"g": {"orders": {0: 5}}},
    ((9, 2, (100, 200)),),
    {1: Member("a:1", "a:2")},
    1,
    {},
)


def changed(path: tuple[str | int, ...], value: Any) -> bytes:
    document = json.loads(encode_image(IMAGE))
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        encode_image(IMAGE)[:-2],
        encode_image(IMAGE).replace(b'"format":1', b'"format":9'),
        b"[]",
        b'{"format":1}',
    ],
)
def test_a_damaged_state_is_refused(damaged: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_image(damaged)


@pytest.mark.parametrize("value", [None, 1.5, float("inf"), float("nan"), True, [], {}])
@pytest.mark.parametrize(
    "path",
    [
        ("topics", "orders", 0),
        ("topics", "orders", 1),
        ("topics", "typed", 2),
        ("groups", "g", "orders", "0"),
        ("producers", 0, 0),
        ("producers", 0, 1),
        ("producers", 0, 2, 0),
        ("members", "1", 0),
        ("members", "1", 1),
        ("versions", "topics"),
    ],
)
def test_a_field_of_another_type_is_refused(path: tuple[str | int, ...], value: Any) -> None:
    with pytest.raises(CorruptionError):
        decode_image(changed(path, value))


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN", "1e999"])
def test_a_number_that_json_cannot_write_is_refused(number: str) -> None:
    """Wherever it stands."""
    data = encode_image(IMAGE)
    with pytest.raises(CorruptionError):
        decode_image(data[:-1] + b',"later":[{"x":%b}]}' % number.encode())

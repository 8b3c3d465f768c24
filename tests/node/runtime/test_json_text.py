"""JSON of others: what Python reads and no JSON has is refused."""

import pytest

from node.runtime.json_text import DEPTH_MAX, read_json


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1.5e309"])
def test_a_number_that_is_infinite_or_none_is_refused_wherever_it_stands(number: str) -> None:
    for text in (number, f"[{number}]", f'{{"a": {{"b": {number}}}}}'):
        with pytest.raises(ValueError, match="number"):
            read_json(text)
        with pytest.raises(ValueError, match="number"):
            read_json(text.encode())


def test_numbers_of_json_are_read() -> None:
    assert read_json("[1.5, -1e308, 1e-999, 12345678901234567890]") == [
        1.5, -1e308, 0.0, 12345678901234567890,
    ]  # fmt: skip


def test_the_depth_does_not_depend_on_the_caller() -> None:
    read_json("[" * DEPTH_MAX + "]" * DEPTH_MAX)
    with pytest.raises(ValueError, match="nested"):
        read_json("[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1))

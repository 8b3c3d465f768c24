"""Amounts with units are read, and others refused with the forms that are."""

from collections.abc import Callable

import pytest

from planning.commands.quantities import (
    LoadRate,
    parse_byte_rate,
    parse_rate,
    parse_size,
    parse_span,
)


@pytest.mark.parametrize(
    ("parse", "text", "amount"),
    [
        (parse_size, "4096", 4096),
        (parse_size, "1KiB", 1024),
        (parse_size, "1.5 TiB", 3 << 39),
        (parse_size, "10GB", 10**10),
        (parse_size, "0B", 0),
        (parse_rate, "50000msg/s", LoadRate(50_000, is_bytes=False)),
        (parse_rate, "1.5kmsg/s", LoadRate(1_500, is_bytes=False)),
        (parse_rate, "80MB/s", LoadRate(80e6, is_bytes=True)),
        (parse_rate, "1MiB/s", LoadRate(1 << 20, is_bytes=True)),
        (parse_rate, "1Gbit/s", LoadRate(125e6, is_bytes=True)),
        (parse_span, "500ms", 0.5),
        (parse_span, "10s", 10),
        (parse_span, "5m", 300),
        (parse_span, "2h", 7_200),
        (parse_span, "7d", 604_800),
    ],
)
def test_amounts_with_units_are_read(
    parse: Callable[[str], object], text: str, amount: object
) -> None:
    assert parse(text) == amount


def test_a_rate_of_bytes_is_one_of_messages_of_a_size() -> None:
    assert parse_rate("1MB/s").msgs_per_s(1_000) == 1_000
    assert parse_rate("7msg/s").msgs_per_s(0) == 7
    with pytest.raises(ValueError, match="at least 1 byte"):
        parse_rate("1MB/s").msgs_per_s(0)


@pytest.mark.parametrize(
    ("parse", "text", "forms"),
    [
        (parse_size, "1kib", "64MiB"),
        (parse_size, "-1", "64MiB"),
        (parse_size, "1e9", "64MiB"),
        (parse_rate, "50000", "50000msg/s"),
        (parse_rate, "5msg", "50000msg/s"),
        (parse_rate, "nan MB/s", "50000msg/s"),
        (parse_byte_rate, "5msg/s", "counts messages"),
        (parse_span, "7", "500ms"),
        (parse_span, "7w", "500ms"),
        (parse_span, "", "500ms"),
        (parse_size, "9" * 400, "64MiB"),
    ],
)
def test_amounts_without_sense_are_refused(
    parse: Callable[[str], object], text: str, forms: str
) -> None:
    with pytest.raises(ValueError, match=forms):
        parse(text)

"""Points in time as people write them."""

import pytest
from click.testing import CliRunner

from qlog import main
from qlog.message_rows import time_text
from qlog.parsed import parse_time

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "unix_ms"),
    [
        ("2023-11-14T22:13:20Z", NOW),
        ("2023-11-14T22:13:20.250+00:00", NOW + 250),
        ("2023-11-14T23:13:20+01:00", NOW),
        ("1700000000", NOW),
        ("1700000000123", NOW + 123),
        ("0", 0),
        ("-15m", NOW - 900_000),
        ("-2d", NOW - 2 * 86_400_000),
        ("-250ms", NOW - 250),
        ("-1h", NOW - 3_600_000),
        ("-90s", NOW - 90_000),
        ("-99999d", 0),
        ("1960-01-01T00:00:00Z", 0),
    ],
)
def test_times_are_understood(text: str, unix_ms: int) -> None:
    assert parse_time(text, now_unix_ms=NOW) == unix_ms


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "-15", "15m", "2023-13-01", "-1w", "1.5", "²", "9" * 19, "-9999999999d"],
)
def test_a_malformed_time_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is no time; give"):
        parse_time(text)


def test_times_are_shown_in_utc_with_milliseconds() -> None:
    assert time_text(NOW + 7) == "2023-11-14T22:13:20.007Z"
    assert parse_time(time_text(NOW + 7)) == NOW + 7
    assert time_text(1 << 62) == "4611686018427387904 ms"


@pytest.mark.parametrize("text", ["²", "-", "-0", "-x", "last", "9" * 19])
def test_a_malformed_position_is_named(text: str) -> None:
    done = CliRunner().invoke(main, ["consume", "orders", f"--from={text}"], prog_name="qlog")
    assert done.exit_code == 2
    assert "is none of first, end, an offset, @TIME" in done.stderr

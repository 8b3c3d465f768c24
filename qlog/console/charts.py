"""Lines over time, as `static/console.js` draws them.

Owns the form of a chart: times in s, and one row of values for each line, with None where there is
none, "gap" where a line ends. Samples of several nodes fall into the same steps.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from quorumlog.admin.types import HistorySample, LagSample, NodeHistory

_STEP_S: Final = 10
_Line = Mapping[int, float | str]
"""Values by time in s; "gap" where the line ends."""


def _chart(title: str, unit: str, lines: Mapping[str, _Line]) -> dict[str, Any]:
    """Return a chart of lines, each a value by time in s."""
    lines = {label: _with_gaps(line) for label, line in lines.items()}
    times = sorted({time for line in lines.values() for time in line})
    rows = [[line.get(time) for time in times] for line in lines.values()]
    return {"title": title, "unit": unit, "labels": [*lines], "data": [times, *rows]}


def _with_gaps(line: _Line) -> _Line:
    """Return a line with "gap" where more than three samples are missing."""
    times = sorted(line)
    steps = sorted(b - a for a, b in pairwise(times))
    every_s = steps[len(steps) // 2] if steps else _STEP_S
    return {**line, **{a + every_s: "gap" for a, b in pairwise(times) if b - a > 3 * every_s}}


def _step(unix_ms: int) -> int:
    return unix_ms // 1000 // _STEP_S * _STEP_S


def of_nodes(histories: Mapping[int, NodeHistory]) -> list[dict[str, Any]]:
    """Return the charts of the last hour: rates, times and disks by node."""
    return [
        _chart("Messages in", "/s", _by_node(histories, "in_messages")),
        _chart("Messages out", "/s", _by_node(histories, "out_messages")),
        _chart("Bytes in", "B/s", _by_node(histories, "in_size_bytes")),
        _chart(
            "Time of an append",
            "ms",
            {
                f"node {node_id} {name}": {
                    _step(one.unix_ms): getattr(one, f"append_{name}_us") / 1000
                    for one in history.samples
                    if one.append_p99_us
                }
                for node_id, history in histories.items()
                for name in ("p50", "p99")
                if any(one.append_p99_us for one in history.samples)
            },
        ),
    ]


def _by_node(histories: Mapping[int, NodeHistory], name: str) -> dict[str, _Line]:
    return {
        f"node {node_id}": {_step(one.unix_ms): rate(one, name) for one in history.samples}
        for node_id, history in histories.items()
    }


def rate(sample: HistorySample, name: str) -> float:
    """Return how much of a count came in a second."""
    return float(getattr(sample, name)) * 1000 / sample.duration_ms


def of_lag(rows: Sequence[LagSample]) -> list[dict[str, Any]]:
    """Return the charts of a group's lag."""

    counts = {_step(one.unix_ms): float(one.message_count) for one in rows}
    ages = {_step(one.unix_ms): one.age_ms / 1000 for one in rows}
    return [
        _chart("Lag in messages", "", {"messages": counts}),
        _chart("Lag in time", "s", {"oldest message": ages}),
    ]

"""Draws a comparison: four small charts, one bar for each mode, the published figures as lines.

Owns the plot; its values come as the record of `bench.compare`. matplotlib is an extra.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {"raft": "#2f6db3", "master": "#c9772b"}
_SIZE_INCHES = (11.0, 7.0)
_DPI = 120


def draw(record: Mapping[str, Any], path: Path) -> None:
    """Write the plot of a comparison to a file; its suffix chooses the format."""
    from matplotlib.figure import Figure

    rows: Sequence[Mapping[str, Any]] = record["modes"]
    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    axes = figure.subplots(2, 2)
    _bars(axes[0, 0], rows, "acked messages a second", [row["acked_msgs_per_s"] for row in rows])
    for published in record["published"]:
        rate = published["acked_msgs_per_s"]
        axes[0, 0].axhline(rate, color="gray", linestyle=":")
        axes[0, 0].annotate(
            f"{published['what']} as published, 4 cores", (0.01, rate), color="gray",
            xycoords=("axes fraction", "data"), va="bottom", fontsize="small",
        )  # fmt: skip
        axes[0, 0].set_ylim(top=max(axes[0, 0].get_ylim()[1], 1.1 * rate))
    _bars(
        axes[0, 1], rows, "one message: median and 99 of 100, ms",
        [row["serial_latency"]["p50_ms"] for row in rows],
        tops=[row["serial_latency"]["p99_ms"] for row in rows],
    )  # fmt: skip
    _bars(
        axes[1, 0], rows, f"acked and lost, leaders that died: {record['kills']}",
        [row["lost_count"] for row in rows],
    )  # fmt: skip
    _bars(
        axes[1, 1], rows, "next ack after a dead leader: median and largest, s",
        [row["rto"]["p50_ms"] / 1e3 for row in rows],
        tops=[row["rto"]["max_ms"] / 1e3 for row in rows],
    )  # fmt: skip
    load, machine = record["load"], record["machine"]
    figure.suptitle(
        f"{record['node_count']} nodes and the client on {machine['cpu_count']} cores, "
        f"{record['directory_kind']}, {load['body_size_bytes']} byte bodies; "
        f"below: links of {record['link_delay_ms']:.0f} ms",
        fontsize="medium",
    )
    figure.savefig(path, dpi=_DPI)


def _bars(
    axes: "Axes",
    rows: Sequence[Mapping[str, Any]],
    title: str,
    values: Sequence[float],
    tops: Sequence[float] | None = None,
) -> None:
    """Draw one bar for each mode with its value above it; `tops` as whiskers."""
    names = [row["mode"].replace("_", "\n") for row in rows]
    colours = [_COLOURS["master" if "master" in row["mode"] else "raft"] for row in rows]
    drawn = axes.bar(names, values, color=colours)
    # Beside the middle, where the whisker is not.
    axes.bar_label(drawn, labels=[f"{_short(value)}{' ' * 16}" for value in values], padding=2)
    if tops is not None:
        above = [max(0.0, top - value) for top, value in zip(tops, values, strict=True)]
        axes.errorbar(
            names, values, yerr=[[0.0] * len(values), above], fmt="none", ecolor="black", capsize=4
        )
    axes.set_title(title, fontsize="medium")
    axes.spines[["top", "right"]].set_visible(False)
    highest = max([*values, *(tops or ())])
    axes.set_ylim(0, 1.15 * highest if highest else 1)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2f}"

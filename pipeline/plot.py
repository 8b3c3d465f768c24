"""Draws the result of `latency`: messages a second, percentiles, lag, over time.

Owns the plot; must not know Spark. matplotlib is the extra `plot`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]
_SIZE_INCHES: Final = (11.0, 9.0)
_DPI: Final = 120
_LINES_MAX: Final = 8
"""Lines in one chart: more cannot be told apart."""


def draw(rates: Sequence[Row], lags: Sequence[Row], path: Path) -> None:
    """Write the plot to a file; its suffix chooses the format."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    axes = figure.subplots(3, 1, sharex=True)
    names = [f"{row['topic']} {row['tag']}" if row["tag"] else row["topic"] for row in rates]
    _lines(axes[0], "messages a second", rates, names, ("messages_per_s",))
    _lines(axes[1], "store less born time, ms: median, and 99 of 100 (dotted)", rates, names,
           ("p50_ms", "p99_ms"))  # fmt: skip
    groups = [f"{row['group']} in {row['topic']}" for row in lags]
    _lines(axes[2], "lag of consumers, messages", lags, groups, ("lag",))
    figure.savefig(path, dpi=_DPI)


def _lines(
    axes: "Axes", title: str, rows: Sequence[Row], names: Sequence[str], columns: Sequence[str]
) -> None:
    """Draw one colour for each name; its second column is dotted. The largest names are shown."""
    by_name: dict[str, list[Row]] = defaultdict(list)
    for name, row in zip(names, rows, strict=True):
        by_name[name].append(row)
    largest = sorted(by_name, key=lambda name: -sum(row[columns[0]] for row in by_name[name]))
    for number, name in enumerate(largest[:_LINES_MAX]):
        times = [datetime.fromisoformat(row["minute"]) for row in by_name[name]]
        for column, style in zip(columns, ("-", ":"), strict=False):
            values = [row[column] for row in by_name[name]]
            label = name if style == "-" else None
            how = {"marker": ".", "color": f"C{number}", "label": label}
            axes.plot(times, values, style, **how)  # type: ignore[arg-type]
    more = f", the largest {_LINES_MAX} of {len(largest)}" if len(largest) > _LINES_MAX else ""
    axes.set_title(title + more, fontsize="medium")
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    if largest:
        axes.legend(fontsize="small", frameon=False)
